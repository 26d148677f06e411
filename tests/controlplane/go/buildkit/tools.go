//go:build tools

// Package tools pins what support.controlplane.binaries builds.
package tools

import (
	_ "github.com/moby/buildkit/cmd/buildctl"
	_ "github.com/moby/buildkit/cmd/buildkitd"
)
