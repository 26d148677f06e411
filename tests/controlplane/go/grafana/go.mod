// Grafana's own types of dashboards, panels and queries.
module omnipipeline.io/controlplane/grafana

go 1.24.0

require github.com/grafana/grafana-foundation-sdk/go v0.0.22
