{{/* RBAC rules of the operator for pipelines and their children, from files/operator-rules.yaml (copied from manifests/rbac). */}}
{{- define "omnipipeline.rules" -}}
{{- range .Files.Get "files/operator-rules.yaml" | fromYamlArray }}
{{- if or $.Values.metrics.podMonitors.enabled (not (has "podmonitors" .resources)) }}
- {{ toYaml . | nindent 2 | trim }}
{{- end }}
{{- end }}
{{- if and .Values.gateway.enabled .Values.gateway.wakesGrpcCallers }}
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [create, delete, patch]
{{- end }}
{{- end -}}
