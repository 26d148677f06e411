{{/* What the operator may do with pipelines and their children; the same in a Role and in the ClusterRole. */}}
{{- define "omnipipeline.rules" -}}
# The resource: read it, write its status. `finalizers` names no object: admission (OwnerReferencesPermissionEnforcement,
# on by default in OpenShift) asks for it before an ownerReference may hold up the owner's deletion in the foreground.
- apiGroups: [omnipipeline.io]
  resources: [omnipipelines]
  verbs: [get, list, watch]
- apiGroups: [omnipipeline.io]
  resources: [omnipipelines/status]
  verbs: [patch]
- apiGroups: [omnipipeline.io]
  resources: [omnipipelines/finalizers]
  verbs: [update]
# Children: watched, applied on the server's side (patch; create where there is none yet), pruned.
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [controllerrevisions, deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.metrics.podMonitors.enabled }}
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
# What tells how the children do: only read.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}
