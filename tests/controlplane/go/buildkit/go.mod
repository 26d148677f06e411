// Builds images straight into containerd.
module omnipipeline.io/controlplane/buildkit

go 1.26.8

require github.com/moby/buildkit v0.33.1
