// Checks manifests against the published schemas of Kubernetes.
module omnipipeline.io/controlplane/kubeconform

go 1.24.0

require github.com/yannh/kubeconform v0.7.0
