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

{{/* Labels of every object: which chart and release it comes from, and commonLabels, which may replace them. */}}
{{- define "omnipipeline.origin" -}}
{{- range $part := list "name" "instance" "component" }}
{{- $key := printf "app.kubernetes.io/%s" $part }}
{{- if hasKey (default dict $.Values.commonLabels) $key }}
{{- fail (printf "commonLabels must not contain %s: the chart selects its pods by that label; choose another key" $key) }}
{{- end }}
{{- end }}
{{- $own := dict "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/part-of" "omnipipeline" }}
{{- $own = set $own "app.kubernetes.io/managed-by" .Release.Service }}
{{- $own = set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version) }}
{{- toYaml (merge (dict) (default dict .Values.commonLabels) $own) }}
{{- end -}}

{{- define "omnipipeline.labels" -}}
{{ include "omnipipeline.selector" . }}
app.kubernetes.io/component: operator
{{ include "omnipipeline.origin" . }}
{{- end -}}

{{/* The operator's labels with additional ones, which may replace them. Include it with (dict "labels" LABELS "root" $). */}}
{{- define "omnipipeline.labelsWith" -}}
{{- toYaml (merge (dict) (default dict .labels) (include "omnipipeline.labels" .root | fromYaml)) }}
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

{{/* A Service's name has at most 63 characters, and the longest one here ends in -gateway-replicas. */}}
{{- define "omnipipeline.gatewayName" -}}
{{ include "omnipipeline.fullname" . | trunc 46 | trimSuffix "-" }}-gateway
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
