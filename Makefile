# Every target is one line; what takes more is a script under tests/cluster/. `make` alone lists them.
.PHONY: help demo demo-down build test test-more generate generated-clean lint fmt bench chart-test cluster-build cluster-up cluster-down
CLUSTER := tests/cluster/cluster

help:            ; @sed -n 's,^\([a-z-]*\): *;.*# ,\1\t,p' Makefile | expand -t 18 | tail -n +2 # this list
demo:            ; @tests/cluster/stage demo $(SEED)                                     # a leaking job is found, named and evicted, on a real cluster without a GPU
demo-down:       ; @tests/cluster/stage down                                       # end the demo's cluster and leave nothing behind
build:           ; cargo build --locked                                           # the binary and the simulated driver
test:            ; @tests/cluster/test                                            # all that must pass before a change goes in
test-more:       ; @tests/cluster/test-more                                       # what is slow: KEDA, prometheus-adapter, Kueue, older API servers, ..
generate:        ; @tests/cluster/generate                                        # CRDs, the chart's copies, plain manifests, the docs' reference
generated-clean: ; @tests/cluster/generate --check                                # fail if `make generate` would change a file
lint:            ; cargo clippy --locked --workspace --all-targets -- -D warnings && cargo clippy --locked --test cluster -- -D warnings  # clippy, warnings are errors
fmt:             ; cargo fmt --all                                                # format
bench:           ; cargo bench --locked                                           # figures, one line each: figure NAME VALUE UNIT
chart-test:      ; @tests/cluster/chart.sh                                        # the chart, without a cluster
cluster-build:   ; @$(CLUSTER) build                                              # compile Kubernetes, containerd and helm, once
cluster-up:      ; @$(CLUSTER) up                                                 # a real cluster on this machine
cluster-down:    ; @$(CLUSTER) down                                               # and away with it
