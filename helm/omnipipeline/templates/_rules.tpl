{{/* RBAC rules of the operator for pipelines and their children, from files/operator-rules.yaml (copied from manifests/rbac). */}}
{{- define "omnipipeline.rules" -}}
{{- $unused := $.Values.metrics.podMonitors.enabled | ternary (list) (list "podmonitors") }}
{{- if has "entry.route" $.Values.operator.forbiddenFields }}{{ $unused = concat $unused (list "ingresses" "grpcroutes") }}{{ end }}
{{- range .Files.Get "files/operator-rules.yaml" | fromYamlArray }}
{{- if not (has (first .resources) $unused) }}
- {{ toYaml . | nindent 2 | trim }}
{{- end }}
{{- end }}
{{- if and .Values.gateway.enabled .Values.gateway.wakesGrpcCallers }}
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [create, delete, patch]
{{- end }}
{{- end -}}
