// A registry that the release's chart and images are pushed to and pulled from.
module omnipipeline.io/controlplane/registry

go 1.25.0

require github.com/google/go-containerregistry v0.22.1
