#!/usr/bin/env bash
# shellcheck disable=SC2317,SC2013  # functions are called through expect; keys hold no blanks
# Tests of the Helm chart.
#   chart.sh         lint, schema, every ci/*-values.yaml, names, rights; needs no cluster
#   chart.sh live    against a running `cluster`: admitted by a real API server, roles as promised, nothing left behind
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
checkout=$(cd "$here/../.." && pwd)
chart=$checkout/charts/gpu-memory-operator
state=${CLUSTER_STATE:-$checkout/.build/cluster}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
failures=0

ok() { printf 'ok    %s\n' "$1"; }
bad() { printf 'FAIL  %s\n' "$1"; [ -z "${2:-}" ] || sed 's/^/      /' "$2" | head -n 20; failures=$((failures + 1)); }
expect() { local what=$1; shift; if "$@" >"$work/out" 2>&1; then ok "$what"; else bad "$what" "$work/out"; fi; }
refuse() { local what=$1; shift; if "$@" >"$work/out" 2>&1; then bad "$what: was accepted"; else ok "$what"; fi; }
finish() { [ "$failures" = 0 ] || { echo "$failures failed"; exit 1; }; echo "all good"; exit 0; }

objects() {  # kind namespace/name of every object in a rendered file
  awk '/^---/ {show()} /^kind:/ {kind = $2} /^metadata:/ {meta = 1; next} /^[^ #]/ {meta = 0}
    meta && /^  name:/ {name = $2} meta && /^  namespace:/ {space = $2} END {show()}
    function show() {if (kind) print kind, space "/" name; kind = name = space = ""; meta = 0}' "$1" | sort
}

absent() { ! grep -nE "$1" "$2"; }
same() { cmp -s "$1" "$2" || { diff "$1" "$2" | head -n 10; return 1; }; }

offline() {
  [ -n "${HELM:-}" ] || "$here/cluster" build helm
  local helm=${HELM:-${CLUSTER_BIN:-$state/bin}/helm} file key
  render() { local out=$1; shift; "$helm" template r "$chart" -n gpumem "$@" >"$out"; }

  expect "the chart lints" "$helm" lint --strict --quiet "$chart"
  expect "defaults kept for --reuse-values are those of values.yaml" cmp "$chart/values.yaml" "$chart/files/default-values.yaml"
  for file in "$checkout"/crds/*.yaml; do
    expect "the chart's $(basename "$file") is the generated one" cmp "$file" "$chart/crd-files/$(basename "$file")"; done
  render "$work/default"
  for file in "$chart"/ci/*-values.yaml; do
    expect "$(basename "$file") lints" "$helm" lint --strict --quiet "$chart" -f "$file"
    for key in 1.34.0 1.35.3-eks-abc123 1.36.0-gke.100 1.37.2; do
      expect "$(basename "$file") renders for $key" render "$work/render" -f "$file" --kube-version "$key"; done
    expect "$(basename "$file") leaves no gap" absent '<no value>|<nil>|%!' "$work/render"
  done
  refuse "Kubernetes 1.33 is refused" render "$work/render" --kube-version 1.33.0

  # An upgrade with --reuse-values from an older chart lacks the newer keys; a null lacks one on purpose.
  for key in $(awk -F: '/^[a-zA-Z]/ {top = $1; print top} /^  [a-zA-Z]/ {gsub(/ /, "", $1); print top "." $1}' "$chart/values.yaml"); do
    if render "$work/render" --set "$key=null" 2>"$work/out" && same "$work/default" "$work/render" >>"$work/out"; then :; else bad "$key=null renders like the default" "$work/out"; fi
  done
  ok "every key of the first two levels may be missing"

  refuse "a misspelt key is refused" render "$work/render" --set agnet.enabled=true
  refuse "a misspelt key inside is refused" render "$work/render" --set agent.deviceAcces=CDI
  refuse "an unknown mode is refused" render "$work/render" --set controller.maxMode=Enforced
  refuse "an unknown platform is refused" render "$work/render" --set agent.platform=AKS
  refuse "an unknown kind is refused" render "$work/render" --set 'controller.workloadKinds.Robot={Evict}'
  refuse "a lever that a kind has not is refused" render "$work/render" --set 'controller.workloadKinds.JobSet={Scale}'
  refuse "a port of 0 is refused" render "$work/render" --set agent.ports.metrics=0
  refuse "an interval without a unit is refused" render "$work/render" --set agent.interval=1
  refuse "a wrong digest is refused" render "$work/render" --set image.digest=sha256:1
  expect "as a subchart: global and enabled are accepted" render "$work/render" --set global.other=1,enabled=true

  # Two releases: the definitions are shared, everything else must differ.
  local long=a12345678901234567890123456789012345678901234567890 pair
  for pair in "one two gpumem gpumem" "same same space-a space-b" "${long}1x ${long}2x gpumem gpumem"; do
    # shellcheck disable=SC2086  # four words
    set -- $pair
    "$helm" template "$1" "$chart" -n "$3" -f "$chart/ci/demo-values.yaml" --set crds.install=false >"$work/a"
    "$helm" template "$2" "$chart" -n "$4" -f "$chart/ci/demo-values.yaml" --set crds.install=false >"$work/b"
    comm -12 <(objects "$work/a") <(objects "$work/b") >"$work/both"
    if [ -s "$work/both" ]; then bad "releases $1 in $3 and $2 in $4 do not meet" "$work/both"; else ok "releases ${1:0:8} in $3 and ${2:0:8} in $4 do not meet"; fi
  done
  objects "$work/a" | awk '{sub(".*/", ""); if (length($0) > 63) print}' >"$work/both"
  if [ -s "$work/both" ]; then bad "names fit in 63 characters" "$work/both"; else ok "names fit in 63 characters"; fi

  expect "by default nothing may be evicted" absent 'pods/eviction' "$work/default"
  render "$work/render" -f "$chart/ci/enforce-values.yaml"
  expect "in Enforce pods may be evicted" grep -q 'pods/eviction' "$work/render"
  expect "the controller is told which rights it has" grep -q '^ *- Checkpoint,Evict,Scale,SuspendWorkload$' "$work/render"
  expect "budgets and namespaces reach the controller's limits" \
    grep -q 'allowedNamespaces\\":\[\\"team-a\\"\].*cluster\\":{\\"maxConcurrent\\":2,\\"maxPerHour\\":6}.*namespace\\":{\\"maxConcurrent\\":1,\\"maxPerHour\\":15}' "$work/render"
  render "$work/render" --set controller.maxMode=Enforce
  "$helm" template r "$chart" -s templates/controller-rbac.yaml --set controller.maxMode=Enforce >"$work/rights"
  expect "Enforce alone grants eviction and nothing else" grep -q '^ *- Evict$' "$work/render"
  expect "no pod, no Job and no scale may be patched" absent 'name: .*-(checkpoint|scale|suspend-workload)$' "$work/rights"
  refuse "a negative budget is refused" render "$work/render" --set controller.budgets.cluster.maxConcurrent=-1
  refuse "a budget of no number is refused" render "$work/render" --set controller.budgets.node.maxPerHour=many
  render "$work/render" -f "$chart/ci/observe-only-values.yaml"
  expect "rbac.actions.evict: false takes the right away" absent 'pods/eviction' "$work/render"
  expect "by default a JobSet is observed only" grep -q 'JobSet=,' "$work/default"
  render "$work/render" --set 'controller.workloadKinds.JobSet={Suspend},controller.workloadKinds.Job=null'
  expect "a kind is turned on by itself, and a null gets its default" grep -q 'Job=Evict+Suspend+Scale,JobSet=Suspend,' "$work/render"
  expect "by default no log may be read" absent 'pods/log|read-pod-logs' "$work/default"
  render "$work/render" --set controller.readPodLogs=true
  expect "controller.readPodLogs grants the log and nothing else" grep -q 'resources: \[pods/log\]' "$work/render"
  expect "controller.readPodLogs is passed on" grep -q -e '- --read-pod-logs' "$work/render"
  refuse "a profile that goes at once is refused" render "$work/render" --set controller.profileTtlDays=0
  expect "by default nothing is root or privileged" absent 'privileged: true|runAsUser: 0|runAsNonRoot: false|hostNetwork|hostIPC|hostPath' "$work/default"
  expect "by default nothing is simulated" absent 'gpumem-sim|GPUMEM_SIM' "$work/default"
  "$helm" template r "$chart" -s templates/agent-rbac.yaml >"$work/render"
  expect "the agent has no right to write" absent 'create|update|patch|delete|\*' "$work/render"
  "$helm" template r "$chart" -s templates/agent-rbac.yaml -f "$chart/ci/limits-values.yaml" >"$work/render"
  expect "and none where it limits and suspends" absent 'create|update|patch|delete|\*' "$work/render"
  expect "by default nobody reads or writes limits" absent 'gpumemorynodes/status|SYS_PTRACE|/host/cgroup' "$work/default"
  render "$work/render" --set agent.limits.enabled=true
  expect "limits take root and no capability" absent 'SYS_PTRACE|DAC_OVERRIDE' "$work/render"
  "$helm" template r "$chart" -f "$chart/ci/everything-values.yaml" >"$work/render"
  awk '/matchLabels:|^  selector:/ {inside = 1; next} inside && !/^ *(app.kubernetes.io|matchLabels)/ {inside = 0} inside' "$work/render" >"$work/selectors"
  expect "common labels are in no selector" absent 'team|cost' "$work/selectors"
  expect "common labels are on pods" grep -q '^        team: platform' "$work/render"
  render "$work/render" -f "$chart/ci/openshift-values.yaml"
  expect "OpenShift gets its constraints" grep -q 'kind: SecurityContextConstraints' "$work/render"
  render "$work/render" -f "$chart/ci/gke-values.yaml"
  expect "GKE gets its quota" grep -q 'kind: ResourceQuota' "$work/render"
  render "$work/render" --api-versions monitoring.coreos.com/v1/PodMonitor
  expect "a PodMonitor is made where there is a Prometheus Operator" grep -q 'honorLabels: true' "$work/render"
  expect "and none elsewhere" absent 'monitoring.coreos.com' "$work/default"
  expect "by default nothing is done at admission" absent 'MutatingAdmissionPolicy|gpumem-hook|--hook' "$work/default"
  render "$work/render" --set admission.enabled=true,hook.enabled=true --kube-version 1.35.0
  expect "nor where the API server has no policy for it" absent '^kind: MutatingAdmissionPolicy' "$work/render"
  expect "which is said there, with the flag for helm template" \
    grep -q -- '--api-versions admissionregistration.k8s.io/v1/MutatingAdmissionPolicy' "$work/render"
  render "$work/render" --set admission.enabled=true --api-versions admissionregistration.k8s.io/v1/MutatingAdmissionPolicy
  expect "where it has, pods that opted in get defaults" grep -q PYTORCH_CUDA_ALLOC_CONF "$work/render"
  expect "and nothing is excused" absent 'Nothing is made here' "$work/render"
  expect "without the hook and its rights" absent 'gpumem-hook|--hook' "$work/render"
  expect "and a failure of the policies stops no pod" absent 'failurePolicy: Fail' "$work/render"
  render "$work/render" --set hook.enabled=true,admission.force=true
  expect "the hook comes without the defaults too" grep -q 'optional: true' "$work/render"
  expect "and without a right to other ConfigMaps" test "$(grep -c 'resourceNames: \[gpumem-hook\]' "$work/render")" = 2
  "$helm" install r "$chart" -n gpumem --dry-run=client --set admission.enabled=true >"$work/notes" 2>&1
  expect "the notes say where nothing can be done at admission" grep -q 'change no pod here' "$work/notes"
  refuse "a hook folder that is no path is refused" render "$work/render" --set hook.mountPath=opt
  "$helm" install r "$chart" -n gpumem --dry-run=client -f "$chart/ci/demo-values.yaml" >"$work/notes" 2>&1
  expect "the notes of a demo say that it is one" grep -q 'DEMO: the GPUs of this release are simulated' "$work/notes"
  finish
}

live() {
  local kubectl="$here/cluster kubectl" helm="$here/cluster helm" file who
  local space=chart-test account=system:serviceaccount:chart-test:t-gpu-memory-operator
  # shellcheck disable=SC2086
  {
    $kubectl delete namespace $space $space-strict --ignore-not-found --timeout=60s >/dev/null
    $kubectl create namespace $space >/dev/null
    $kubectl create namespace $space-strict >/dev/null
    $kubectl label namespace $space-strict pod-security.kubernetes.io/enforce=restricted >/dev/null
    $kubectl get --raw /apis/admissionregistration.k8s.io/v1 | grep -o '"name":"[a-z]*"' | sed 's|.*:"\(.*\)"|admissionregistration.k8s.io/v1/\1|' >"$work/served"
    for file in "$chart"/ci/*-values.yaml; do
      case $file in *openshift* | *monitoring* | *everything*) continue ;; esac  # need APIs that are not here
      $helm template t "$chart" -n $space --no-hooks -f "$file" >"$work/render"
      if grep -q MutatingAdmissionPolicy "$work/render" && ! grep -qx admissionregistration.k8s.io/v1/mutatingadmissionpolicies "$work/served"; then
        # Kubernetes 1.36 is the first that serves it; the chart leaves it out unless values force it.
        refuse "$(basename "$file"), which forces what this server has not, is refused" $kubectl apply --dry-run=server -f "$work/render"
        continue
      fi
      expect "$(basename "$file") is admitted by the API server" $kubectl apply --dry-run=server --validate=strict -f "$work/render"
    done
    expect "the controller fits the restricted standard" $helm install t "$chart" -n $space-strict \
      --set agent.enabled=false,cleanup.enabled=false,crds.install=false --dry-run=server
    $helm template t "$chart" -n $space-strict -s templates/controller.yaml | $kubectl apply -f - --dry-run=server >"$work/out" 2>&1
    expect "and no warning says otherwise" absent 'would violate' "$work/out"
    # Another release may have left the definitions behind.
    $helm install t "$chart" -n $space --take-ownership --set controller.maxMode=Enforce,controller.replicas=0 >/dev/null
    may() {  # may yes|no agent|controller VERB RESOURCE[/NAME] [FLAGS]
      local want=$1 who=$2; shift 2
      [ "$($kubectl auth can-i "$@" --as="$account-$who" 2>/dev/null | tail -n 1)" = "$want" ]
    }
    local tls=secrets/t-gpu-memory-operator-tls ledger=configmaps/t-gpu-memory-operator-ledger
    expect "agent: lists pods" may yes agent list pods -A
    expect "agent: reads its certificate" may yes agent get $tls -n $space
    expect "agent: not the authority's key" may no agent get $tls-authority -n $space
    expect "agent: no secret elsewhere" may no agent get $tls -n default
    expect "agent: writes no pod" may no agent patch pods -A
    expect "agent: writes no event" may no agent create events -A
    expect "controller: reads a pod" may yes controller get pods -A
    expect "controller: lists no pods of others" may no controller list pods -A
    expect "controller: lists its own" may yes controller list pods -n $space
    expect "controller: reads a Job and its CronJob" may yes controller get cronjobs.batch -A
    expect "controller: lists autoscalers" may yes controller list horizontalpodautoscalers.autoscaling -A
    expect "controller: evicts" may yes controller create pods --subresource=eviction -A
    expect "controller: deletes no pod" may no controller delete pods -A
    expect "controller: changes no policy" may no controller patch gpumemorypolicies -A
    expect "controller: says what became of it" may yes controller patch gpumemorypolicies --subresource=status -A
    expect "controller: keeps its ledger" may yes controller patch $ledger -n $space
    expect "controller: reads no other secret" may no controller get secrets/other -n $space
    expect "controller: no secret elsewhere" may no controller create secrets -n default
    expect "controller: scales nothing" may no controller patch deployments -A
    expect "controller: scales nothing by the subresource" may no controller patch deployments --subresource=scale -A
    expect "controller: annotates no pod" may no controller patch pods -A
    expect "controller: suspends no Job" may no controller patch jobs -A
    expect "controller: reads its limits" may yes controller get configmaps/t-gpu-memory-operator-limits -n $space
    expect "controller: never writes its limits" may no controller patch configmaps/t-gpu-memory-operator-limits -n $space
    $helm upgrade t "$chart" -n $space --reuse-values --set rbac.actions.checkpoint=true,rbac.actions.scale=true,rbac.actions.suspendWorkload=true >/dev/null
    expect "with rbac.actions.checkpoint: annotates pods" may yes controller patch pods -A
    expect "with rbac.actions.scale: scales by the subresource" may yes controller patch deployments --subresource=scale -A
    expect "with rbac.actions.scale: still changes no Deployment" may no controller patch deployments -A
    expect "with rbac.actions.suspendWorkload: suspends Jobs" may yes controller patch jobs -A
    $helm upgrade t "$chart" -n $space --reuse-values --set rbac.actions.checkpoint=false,rbac.actions.scale=false,rbac.actions.suspendWorkload=false >/dev/null
    expect "controller: no ConfigMap elsewhere" may no controller create configmaps -n default
    $helm upgrade t "$chart" -n $space --reuse-values --set hook.enabled=true,admission.enabled=true >/dev/null
    expect "controller with the hook: keeps its one ConfigMap elsewhere" may yes controller patch configmaps/gpumem-hook -n default
    expect "controller with the hook: reads no other" may no controller get configmaps/other -n default
    expect "agent with the hook: nothing more" may no agent get configmaps/gpumem-hook -n default
    $helm upgrade t "$chart" -n $space --reuse-values --set controller.maxMode=Observe,hook.enabled=false,admission.enabled=false >/dev/null
    expect "without the hook again that right is gone" may no controller patch configmaps/gpumem-hook -n default
    expect "back in Observe the right to evict is gone" may no controller create pods --subresource=eviction -A
    $helm uninstall t -n $space --no-hooks >/dev/null
    $kubectl get all,cm,secret,lease,role,rolebinding,sa,pdb,job -n $space -o name 2>/dev/null |
      grep -v 'configmap/kube-root-ca.crt\|serviceaccount/default' >"$work/left" || true
    $kubectl get clusterrole,clusterrolebinding -o name | grep gpu-memory-operator >>"$work/left" || true
    if [ -s "$work/left" ]; then bad "uninstall leaves nothing" "$work/left"; else ok "uninstall leaves nothing"; fi
    expect "but the definitions" $kubectl get crd gpumemorypolicies.gpumem.dev
    for file in "$checkout"/deploy/examples/*.yaml; do
      sed "s/namespace: team-[a-z]/namespace: $space/" "$file" >"$work/render"
      expect "example $(basename "$file") is accepted" $kubectl apply --dry-run=server --validate=strict -f "$work/render"
    done
    expect "a second install adopts them" $helm install t "$chart" -n $space --set controller.replicas=0
    $helm uninstall t -n $space --no-hooks >/dev/null
    $kubectl delete namespace $space $space-strict --wait=false >/dev/null
  }
  finish
}

case ${1:-} in '') offline ;; live) live ;; *) sed -n '3,5p' "$0"; exit 2 ;; esac
