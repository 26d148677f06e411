//go:build tools

// Package tools pins what support.controlplane.binaries builds, so that `go mod tidy` fills go.sum.
package tools

import _ "github.com/google/go-containerregistry/cmd/crane"
