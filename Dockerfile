# docker build -t registry.example.com/gpumem:0.1.0 .     (or buildah, podman; x86_64 and arm64)
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# What `gpumem` links to besides libc is gathered with its path, so that the last stage can be empty.
RUN cargo build --release --locked --workspace --bins --lib \
 && mkdir -p /image/usr/local/bin /image/usr/lib/gpumem-sim /image/tmp && chmod 1777 /image/tmp \
 && cp target/release/gpumem /image/usr/local/bin/gpumem \
 && cp target/release/libgpumem_sim.so /image/usr/lib/gpumem-sim/libnvidia-ml.so.1 \
 && ldd target/release/gpumem target/release/libgpumem_sim.so | awk '$2 == "=>" && $3 ~ "^/" {print $3} $1 ~ "^/" && !/:$/ {print $1}' \
  | sort -u | while read -r file; do install -D -m 0755 "$(realpath "$file")" "/image$file"; done

# Nothing but the binary, the simulated NVML library of the demo, and the C library they link to: no shell, no packages.
# The real libnvidia-ml.so.1 comes from the node and needs libc, libdl, libpthread, librt and libm: they are copied too.
FROM build AS libraries
RUN for name in libc.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libm.so.6 libgcc_s.so.1; do \
      file=$(ldconfig -p | awk -v n="$name" '$1 == n {print $NF; exit}') \
   && install -D -m 0755 "$(realpath "$file")" "/image$file" || exit 1; done \
 && mkdir -p /image/etc && touch /image/etc/debian_version
# NVIDIA's toolkit puts libraries where Debian's loader looks only if it sees debian_version.

FROM scratch
COPY --from=libraries /image/ /
USER 65532:65532
ENV PATH=/usr/local/bin
ENTRYPOINT ["/usr/local/bin/gpumem"]
