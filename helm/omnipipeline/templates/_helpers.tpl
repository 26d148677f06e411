{{- define "omnipipeline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "omnipipeline.selector" -}}
app.kubernetes.io/name: omnipipeline-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "omnipipeline.labels" -}}
{{ include "omnipipeline.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: omnipipeline
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "omnipipeline.serviceAccountName" -}}
{{- default (ternary (include "omnipipeline.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{/* REPOSITORY@DIGEST, or REPOSITORY:TAG. Called with (dict "image" IMAGE "version" APPVERSION). */}}
{{- define "omnipipeline.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .version .image.tag }}
{{- end -}}
{{- end -}}
