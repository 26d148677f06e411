// The Gateway API, whose published CRDs judge the routes that the operator and the chart write.
module omnipipeline.io/controlplane/gateway-api

go 1.25.0

require sigs.k8s.io/gateway-api v1.6.3
