{{- define "omnipipeline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Names of cluster-wide objects: releases with the same name in two namespaces must not share one. */}}
{{- define "omnipipeline.clusterName" -}}
{{ .Release.Namespace }}-{{ include "omnipipeline.fullname" . }}
{{- end -}}

{{- define "omnipipeline.selector" -}}
app.kubernetes.io/name: omnipipeline-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of every object: which chart and release it comes from. */}}
{{- define "omnipipeline.origin" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: omnipipeline
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "omnipipeline.labels" -}}
{{ include "omnipipeline.selector" . }}
app.kubernetes.io/component: operator
{{ include "omnipipeline.origin" . }}
{{- end -}}

{{/* Labels of the pod of `helm test`. The operator's labels would make Services and policies select that pod too. */}}
{{- define "omnipipeline.testSelector" -}}
app.kubernetes.io/name: omnipipeline-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "omnipipeline.serviceAccountName" -}}
{{- default (ternary (include "omnipipeline.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{/* [REGISTRY/]REPOSITORY@DIGEST or [REGISTRY/]REPOSITORY:TAG. Include it with (dict "image" IMAGE "root" $). */}}
{{- define "omnipipeline.image" -}}
{{- with .root.Values.imageRegistry }}{{ . }}/{{ end -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{- define "omnipipeline.gatewaySelector" -}}
app.kubernetes.io/name: omnipipeline-gateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "omnipipeline.gatewayLabels" -}}
{{ include "omnipipeline.gatewaySelector" . }}
app.kubernetes.io/component: gateway
{{ include "omnipipeline.origin" . }}
{{- end -}}
