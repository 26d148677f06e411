// An autoscaler that users have. It is built in a copy of its folder (go_build.py), so its own go.sum has the rest.
module omnipipeline.io/controlplane/keda

go 1.26.0

require github.com/kedacore/keda/v2 v2.20.2
