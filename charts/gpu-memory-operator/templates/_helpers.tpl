{{/* Every template starts with gmo.init: it puts back defaults that `--reuse-values` or a null left out. */}}
{{- define "gmo.init" -}}
{{- include "gmo.fill" (dict "into" .Values "from" (.Files.Get "files/default-values.yaml" | fromYaml)) -}}
{{- end }}

{{/* Sets in .into what only .from has. Maps of free form are taken as they are, so that a user can leave out a part of them. */}}
{{- define "gmo.fill" -}}
{{- $into := .into -}}
{{- $free := list "resources" "nodeSelector" "affinity" "podSecurityContext" "securityContext" "updateStrategy" "commonLabels" -}}
{{- range $key, $value := .from -}}
  {{- if or (not (hasKey $into $key)) (kindIs "invalid" (get $into $key)) -}}
    {{- $_ := set $into $key $value -}}
  {{- else if and (kindIs "map" $value) (kindIs "map" (get $into $key)) (not (has $key $free)) -}}
    {{- include "gmo.fill" (dict "into" (get $into $key) "from" $value) -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{/* === names === */}}

{{- define "gmo.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* At most 45 characters, so that every suffix fits in 63; what is cut is told apart by a checksum. */}}
{{- define "gmo.short" -}}
{{- if gt (len .) 45 -}}{{ printf "%s-%s" (trunc 36 . | trimSuffix "-") (sha256sum . | trunc 8) }}{{- else -}}{{ . }}{{- end -}}
{{- end }}

{{- define "gmo.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- include "gmo.short" .Values.fullnameOverride -}}
{{- else if contains (include "gmo.name" .) .Release.Name -}}
{{- include "gmo.short" .Release.Name -}}
{{- else -}}
{{- include "gmo.short" (printf "%s-%s" .Release.Name (include "gmo.name" .)) -}}
{{- end -}}
{{- end }}

{{- define "gmo.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end }}

{{/* Cluster-scoped objects: two releases of one name in two namespaces must not meet. */}}
{{- define "gmo.clusterName" -}}
{{- include "gmo.short" (printf "%s-%s" (include "gmo.namespace" .) (include "gmo.fullname" .)) -}}
{{- end }}

{{- define "gmo.agentAccount" -}}
{{- if .Values.agent.serviceAccount.name -}}{{ .Values.agent.serviceAccount.name }}
{{- else if .Values.agent.serviceAccount.create -}}{{ include "gmo.fullname" . }}-agent
{{- else -}}default{{- end -}}
{{- end }}

{{- define "gmo.controllerAccount" -}}
{{- if .Values.controller.serviceAccount.name -}}{{ .Values.controller.serviceAccount.name }}
{{- else if .Values.controller.serviceAccount.create -}}{{ include "gmo.fullname" . }}-controller
{{- else -}}default{{- end -}}
{{- end }}

{{/* What the controller makes at run time. The agents read the first; the second holds the authority's key. */}}
{{- define "gmo.tlsSecret" -}}{{ include "gmo.fullname" . }}-tls{{- end }}
{{- define "gmo.authoritySecret" -}}{{ include "gmo.fullname" . }}-tls-authority{{- end }}
{{- define "gmo.ledger" -}}{{ include "gmo.fullname" . }}-ledger{{- end }}
{{- define "gmo.limits" -}}{{ include "gmo.fullname" . }}-limits{{- end }}
{{- define "gmo.lease" -}}{{ include "gmo.fullname" . }}-controller{{- end }}

{{/* What may be done to which kind, for a flag: Job=Evict+Suspend,JobSet= */}}
{{- define "gmo.workloadKinds" -}}
{{- $kinds := list -}}
{{- range $kind, $levers := .Values.controller.workloadKinds -}}
{{- $kinds = append $kinds (printf "%s=%s" $kind (join "+" $levers)) -}}
{{- end -}}
{{- join "," $kinds -}}
{{- end }}

{{/* === labels; called with (list root component) === */}}

{{- define "gmo.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "gmo.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* The same for a flag: a=b,c=d. */}}
{{- define "gmo.selectorFlag" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name={{ include "gmo.name" $root }},app.kubernetes.io/instance={{ $root.Release.Name }},app.kubernetes.io/component={{ index . 1 }}
{{- end }}

{{- define "gmo.labels" -}}
{{- $root := index . 0 -}}
{{- $own := include "gmo.selector" . | fromYaml -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- $_ := set $own "app.kubernetes.io/version" $root.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := set $own "app.kubernetes.io/part-of" "gpu-memory-operator" -}}
{{- toYaml (merge $own $root.Values.commonLabels ($root.Values.global.commonLabels | default dict)) -}}
{{- end }}

{{/* metadata of an object; called with (list root component name) or (list root component name annotations) */}}
{{- define "gmo.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 2 }}
labels: {{- include "gmo.labels" . | nindent 2 }}
{{- $annotations := merge (dict) (gt (len .) 3 | ternary (last .) (dict)) $root.Values.commonAnnotations }}
{{- with $annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* labels of a pod; called with (list root component podLabels) */}}
{{- define "gmo.podLabels" -}}
{{- toYaml (merge (include "gmo.labels" . | fromYaml) (index . 2)) -}}
{{- end }}

{{/* === image === */}}

{{- define "gmo.image" -}}
{{- $registry := .Values.global.imageRegistry | default .Values.image.registry -}}
{{- with $registry }}{{ . }}/{{ end }}{{ .Values.image.repository -}}
{{- if .Values.image.digest -}}@{{ .Values.image.digest }}{{- else -}}:{{ .Values.image.tag | default .Chart.AppVersion }}{{- end -}}
{{- end }}

{{- define "gmo.pullSecrets" -}}
{{- with concat (.Values.global.imagePullSecrets | default list) .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* === how the agent reaches the GPUs: the preset of the platform, then what the user said === */}}

{{- define "gmo.device" -}}
{{- $agent := .Values.agent -}}
{{- $presets := dict
  "GPUOperator" (dict "access" "RuntimeClass" "runtimeClassName" "nvidia" "hostPath" "/run/nvidia/driver" "mountPath" "/run/nvidia/driver")
  "OpenShift" (dict "access" "RuntimeClass" "runtimeClassName" "nvidia" "hostPath" "/run/nvidia/driver" "mountPath" "/run/nvidia/driver")
  "GKE" (dict "access" "Privileged" "runtimeClassName" "" "hostPath" "/home/kubernetes/bin/nvidia" "mountPath" "/usr/local/nvidia")
  "EKS" (dict "access" "RuntimeClass" "runtimeClassName" "" "hostPath" "/usr/lib64" "mountPath" "/run/nvidia/host") -}}
{{- $preset := get $presets $agent.platform -}}
{{- if ne $agent.deviceAccess "Auto" }}{{ $_ := set $preset "access" $agent.deviceAccess }}{{ end -}}
{{- if ne $agent.runtimeClassName "auto" }}{{ $_ := set $preset "runtimeClassName" $agent.runtimeClassName }}{{ end -}}
{{- if ne $agent.driver.hostPath "auto" }}{{ $_ := set $preset "hostPath" $agent.driver.hostPath }}{{ end -}}
{{- if ne $agent.driver.mountPath "auto" }}{{ $_ := set $preset "mountPath" $agent.driver.mountPath }}{{ end -}}
{{- $library := $agent.nvmlLibrary -}}
{{- if and (not $library) (eq $preset.access "Privileged") (eq $preset.mountPath "/run/nvidia/host") }}{{ $library = "/run/nvidia/host/libnvidia-ml.so.1" }}{{ end -}}
{{- if .Values.demo.enabled -}}
  {{- $preset = dict "access" "Simulated" "runtimeClassName" "" -}}
  {{- $library = "/usr/lib/gpumem-sim/libnvidia-ml.so.1" -}}
{{- end -}}
{{- if eq $preset.access "Privileged" }}{{ $_ := set $preset "runtimeClassName" "" }}{{ end -}}
{{- toYaml (merge (dict "library" $library) $preset) -}}
{{- end }}

{{/* "auto" with the API that must be there, or a boolean; called with (list root value api); "true" or nothing */}}
{{- define "gmo.auto" -}}
{{- $root := index . 0 -}}
{{- if eq (toString (index . 1)) "auto" -}}
{{- if $root.Capabilities.APIVersions.Has (index . 2) }}true{{ end -}}
{{- else if eq (toString (index . 1)) "true" -}}true{{- end -}}
{{- end }}

{{- /* Not empty where the agent may make something hold on its node. */}}
{{- define "gmo.holds" -}}
{{- if and .Values.agent.enabled (or .Values.agent.limits.enabled .Values.agent.suspend.enabled) }}true{{ end -}}
{{- end }}

{{/* Whether a right to act is granted; called with (list root action); "true" or nothing */}}
{{- define "gmo.may" -}}
{{- $root := index . 0 -}}
{{- $asked := toString (get $root.Values.rbac.actions (index . 1)) -}}
{{- if eq $asked "auto" -}}
{{- if ne $root.Values.controller.maxMode "Observe" }}true{{ end -}}
{{- else if eq $asked "true" -}}true{{- end -}}
{{- end }}

{{/* The rights to act that are granted, as the controller's flag lists them. */}}
{{- define "gmo.granted" -}}
{{- $granted := list -}}
{{- range $action, $name := dict "evict" "Evict" "checkpoint" "Checkpoint" "scale" "Scale" "suspendWorkload" "SuspendWorkload" -}}
{{- if include "gmo.may" (list $ $action) }}{{ $granted = append $granted $name }}{{ end -}}
{{- end -}}
{{- if and .Values.agent.enabled .Values.agent.suspend.enabled }}{{ $granted = append $granted "SuspendToHost" }}{{ end -}}
{{- $granted | sortAlpha | join "," -}}
{{- end }}

{{- define "gmo.probes" -}}
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  initialDelaySeconds: 10
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 5
{{- end }}
