{{/* Makes null mean "not set" for every value, in .Values itself: removes keys that are null, and gives keys that are missing their
defaults. Helm removes a key that is null, so templates would otherwise fail on a missing section. Every template includes this first. */}}
{{- define "omnipipeline.defaults" -}}
{{- include "omnipipeline.removeNulls" .Values }}
{{- include "omnipipeline.fill" (list .Values (.Files.Get "files/defaults.json" | fromJson)) }}
{{- if not .Values.enabled }}
{{- fail "enabled is false, but the parent chart has no condition; name this value in the parent's dependency, as condition: omnipipeline.enabled" }}
{{- end }}
{{- end -}}

{{- define "omnipipeline.removeNulls" -}}
{{- $map := . }}
{{- range $key, $value := $map }}
{{- if kindIs "invalid" $value }}{{ $_ := unset $map $key }}
{{- else if kindIs "map" $value }}{{ include "omnipipeline.removeNulls" $value }}{{ end }}
{{- end }}
{{- end -}}

{{- define "omnipipeline.fill" -}}
{{- $map := index . 0 }}
{{- range $key, $default := index . 1 }}
{{- if not (hasKey $map $key) }}{{ $_ := set $map $key $default }}
{{- else if kindIs "map" $default }}{{ include "omnipipeline.fill" (list (index $map $key) $default) }}{{ end }}
{{- end }}
{{- end -}}

{{/* A text as the value of a label: "0.1.0+abc" becomes "0.1.0_abc". */}}
{{- define "omnipipeline.labelValue" -}}
{{ regexReplaceAll "[^-A-Za-z0-9_.]" . "_" | trunc 63 | trimAll "-_." }}
{{- end -}}

{{/* The name of this installation: RELEASE-CHART, or RELEASE if that contains "omnipipeline". The chart's name is its alias if it is a
dependency with one. Release names and aliases may have letters that names of Services may not; a name that must be changed or
shortened gets a hash, so that no two installations share it. A Service's name has at most 63 characters, and the longest one here
ends in -gateway-replicas. */}}
{{- define "omnipipeline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $chart := default .Chart.Name .Values.nameOverride }}
{{- $plain := and (or .Values.nameOverride (eq .Chart.Name "omnipipeline")) (contains $chart .Release.Name) }}
{{- $wanted := ternary .Release.Name (printf "%s-%s" .Release.Name $chart) (not (empty $plain)) }}
{{- $name := regexReplaceAll "[^-a-z0-9]" (lower $wanted) "-" | trimAll "-" }}
{{- if not (regexMatch "^[a-z]" $name) }}{{ $name = printf "o-%s" $name }}{{ end }}
{{- if or (ne $name $wanted) (gt (len $name) 46) }}
{{- $name = printf "%s-%s" ($name | trunc 37 | trimSuffix "-") (sha256sum $wanted | trunc 8) }}
{{- end }}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/* Names of cluster-wide objects: releases with the same name in two namespaces must not share one. */}}
{{- define "omnipipeline.clusterName" -}}
{{ .Release.Namespace }}-{{ include "omnipipeline.fullname" . }}
{{- end -}}

{{/* Labels that tell installations apart: a release can contain the chart more than once, under aliases. */}}
{{- define "omnipipeline.installation" -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
omnipipeline.io/installation: {{ include "omnipipeline.fullname" . | quote }}
{{- end -}}

{{- define "omnipipeline.selector" -}}
app.kubernetes.io/name: omnipipeline-operator
{{ include "omnipipeline.installation" . }}
{{- end -}}

{{/* Labels of every object: which chart and release it comes from, and commonLabels, which may replace them. */}}
{{- define "omnipipeline.origin" -}}
{{- range $value := list "commonLabels" "podLabels" }}
{{- range $key := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "omnipipeline.io/installation" }}
{{- if hasKey (default dict (index $.Values $value)) $key }}
{{- fail (printf "%s must not contain %s: the chart selects its pods by that label; choose another key" $value $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- $own := dict "app.kubernetes.io/part-of" "omnipipeline" }}
{{- $own = set $own "app.kubernetes.io/version" (include "omnipipeline.labelValue" .Chart.AppVersion) }}
{{- $own = set $own "app.kubernetes.io/managed-by" .Release.Service }}
{{- $own = set $own "helm.sh/chart" (include "omnipipeline.labelValue" (printf "%s-%s" .Chart.Name .Chart.Version)) }}
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
{{ include "omnipipeline.installation" . }}
{{- end -}}

{{- define "omnipipeline.serviceAccountName" -}}
{{- default (ternary (include "omnipipeline.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{/* [REGISTRY/]REPOSITORY@DIGEST or [REGISTRY/]REPOSITORY:TAG. Include it with (dict "image" IMAGE "root" $). */}}
{{- define "omnipipeline.image" -}}
{{- $name := .image.repository }}
{{- with default (default dict .root.Values.global).imageRegistry .root.Values.imageRegistry }}{{ $name = printf "%s/%s" . $name }}{{ end }}
{{- if not (regexMatch "^((\\[[0-9A-Fa-f:]+\\]|[A-Za-z0-9][A-Za-z0-9.-]*)(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$" $name) }}
{{- fail (printf "%s is not a name of an image, which is HOST:PORT/PATH in lower case, without https:// and tag; correct imageRegistry or repository" $name) }}
{{- end }}
{{- if .image.digest -}}
{{ $name }}@{{ .image.digest }}
{{- else -}}
{{ $name }}:{{ default (replace "+" "_" .root.Chart.AppVersion) .image.tag }}
{{- end -}}
{{- end -}}

{{/* The first map over the others, for annotations that users may replace: a key twice in a map is refused by kustomize. Include it with
a list of maps. */}}
{{- define "omnipipeline.merged" -}}
{{- $merged := dict }}
{{- range . }}{{ $merged = merge $merged (default dict .) }}{{ end }}
{{- toYaml $merged }}
{{- end -}}

{{/* imagePullSecrets, and those of the parent chart, as names or as objects with a name; empty if there are none. */}}
{{- define "omnipipeline.pullSecrets" -}}
{{- $found := default list .Values.imagePullSecrets }}
{{- range default list (default dict .Values.global).imagePullSecrets }}
{{- $found = append $found (kindIs "map" . | ternary . (dict "name" .)) }}
{{- end }}
{{- with $found }}{{ toYaml (uniq .) }}{{ end }}
{{- end -}}

{{- define "omnipipeline.gatewayName" -}}
{{ include "omnipipeline.fullname" . }}-gateway
{{- end -}}

{{- define "omnipipeline.gatewaySelector" -}}
app.kubernetes.io/name: omnipipeline-gateway
{{ include "omnipipeline.installation" . }}
{{- end -}}

{{- define "omnipipeline.gatewayLabels" -}}
{{ include "omnipipeline.gatewaySelector" . }}
app.kubernetes.io/component: gateway
{{ include "omnipipeline.origin" . }}
{{- end -}}
