{{/* What the operator may do with pipelines and their children: files/operator-rules.yaml, the rules of manifests/rbac. */}}
{{- define "omnipipeline.rules" -}}
{{- range .Files.Get "files/operator-rules.yaml" | fromYamlArray }}
{{- if or $.Values.metrics.podMonitors.enabled (not (has "podmonitors" .resources)) }}
- {{ toYaml . | nindent 2 | trim }}
{{- end }}
{{- end }}
{{- end -}}
