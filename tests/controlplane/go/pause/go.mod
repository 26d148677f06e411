// What holds the namespaces of a pod: the sandbox image of the test node.
module omnipipeline.io/controlplane/pause

go 1.24.0
