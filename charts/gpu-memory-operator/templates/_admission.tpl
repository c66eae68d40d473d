{{/* CEL of the admission policies. The same rules as the product's `gpumem env-merge`; a test on a real API server compares them.
     Each is called with the list of the pod it is for: containers or initContainers. `c` is the container at hand. */}}

{{/* It asks for a GPU, or is shown one. */}}
{{- define "gmo.cel.seesGpu" -}}
((has(c.resources) && (
  (has(c.resources.limits) && c.resources.limits.exists(r, r.startsWith('nvidia.com/'))) ||
  (has(c.resources.requests) && c.resources.requests.exists(r, r.startsWith('nvidia.com/'))) ||
  (has(c.resources.claims) && size(c.resources.claims) > 0))) ||
(has(c.env) && c.env.exists(e, e.name == 'NVIDIA_VISIBLE_DEVICES' &&
  (has(e.valueFrom) || (has(e.value) && !(e.value in ['', 'void', 'none']))))))
{{- end }}

{{/* envFrom may hold what env does not, and an entry in env would hide it. */}}
{{- define "gmo.cel.hidden" -}}
(has(c.envFrom) && size(c.envFrom) > 0)
{{- end }}

{{/* Adds a variable that is one value, where the container has none of that name; called with (list LIST NAME VALUE). */}}
{{- define "gmo.cel.add" -}}
(!{{ include "gmo.cel.hidden" . }} && !(has(c.env) && c.env.exists(e, e.name == '{{ index . 1 }}'))
  ? [Object.spec.{{ index . 0 }}.env{name: '{{ index . 1 }}', value: '{{ index . 2 }}'}] : [])
{{- end }}

{{/* PyTorch's list: under the name or names that the user uses, our key behind the user's. An unreadable list stays as it is. */}}
{{- define "gmo.cel.torch" -}}
{{- $entry := `[A-Za-z0-9_\s]*[A-Za-z0-9_][A-Za-z0-9_\s]*:\s*(?:[^\[\],\s]|\[[^\[\]]*\])(?:[^\[\],]|\[[^\[\]]*\])*` -}}
((has(c.command) && c.command.exists(w, w.contains('--enable-sleep-mode') || w.contains('--enable_sleep_mode') || w.contains('--enable-memory-saver'))) ||
 (has(c.args) && c.args.exists(w, w.contains('--enable-sleep-mode') || w.contains('--enable_sleep_mode') || w.contains('--enable-memory-saver')))
  ? [] :
 !(has(c.env) && c.env.exists(e, e.name in ['PYTORCH_CUDA_ALLOC_CONF', 'PYTORCH_ALLOC_CONF']))
  ? ({{ include "gmo.cel.hidden" . }} ? [] : [Object.spec.{{ . }}.env{name: 'PYTORCH_CUDA_ALLOC_CONF', value: 'expandable_segments:True'}])
  : c.env.filter(e, e.name in ['PYTORCH_CUDA_ALLOC_CONF', 'PYTORCH_ALLOC_CONF'] && has(e.value) && size(e.value) <= 4096 &&
      c.env.filter(o, o.name == e.name).size() == 1 &&
      !e.value.contains('$(') && !e.value.contains('expandable_segments') && !e.value.contains('cudaMallocAsync') &&
      e.value.matches(r'^{{ $entry }}(?:,{{ $entry }})*$'))
    .map(e, Object.spec.{{ . }}.env{name: e.name, value: e.value + ',expandable_segments:True'}))
{{- end }}

{{/* The hook may go in: nobody switched it off, and nothing hides whether somebody did. */}}
{{- define "gmo.cel.hookable" -}}
({{ include "gmo.cel.seesGpu" . }} &&
 (has(c.env) && c.env.exists(e, e.name == 'GPUMEM_HOOK')
   ? c.env.filter(e, e.name == 'GPUMEM_HOOK').all(e, has(e.value) && e.value == '1')
   : !{{ include "gmo.cel.hidden" . }}))
{{- end }}

{{/* The hook's folder behind the user's own path; called with (list LIST FOLDER). */}}
{{- define "gmo.cel.path" -}}
{{- $folder := index . 1 -}}
(has(c.env) && c.env.exists(e, e.name == 'PYTHONPATH')
  ? c.env.filter(e, e.name == 'PYTHONPATH' && !has(e.valueFrom) && c.env.filter(o, o.name == e.name).size() == 1 &&
      !(has(e.value) && '{{ $folder }}' in e.value.split(':')))
    .map(e, Object.spec.{{ index . 0 }}.env{name: e.name,
      value: has(e.value) && e.value != '' ? e.value + ':{{ $folder }}' : '{{ $folder }}'})
  : {{ include "gmo.cel.hidden" . }} ? [] : [Object.spec.{{ index . 0 }}.env{name: 'PYTHONPATH', value: '{{ $folder }}'}])
{{- end }}

{{/* What both policies apply to; called with (list root label). Each opts in by its own label, on the namespace or (defaults only) on the pod. */}}
{{- define "gmo.admission.match" -}}
{{- $root := index . 0 -}}
failurePolicy: Ignore
reinvocationPolicy: IfNeeded
matchConstraints:
  namespaceSelector:
    matchExpressions:
      - {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ uniq (list "kube-system" (include "gmo.namespace" $root)) | toJson }}}
  objectSelector:
    matchExpressions:
      - {key: {{ index . 1 }}, operator: NotIn, values: [Disabled]}
  resourceRules:
    - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}
{{- end }}
