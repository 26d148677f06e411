// Plays the kubelets: it moves pods of nodes that do not exist through their states.
module omnipipeline.io/controlplane/kwok

go 1.24.0

require sigs.k8s.io/kwok v0.7.0
