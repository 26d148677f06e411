// grafana-schema reads a dashboard as JSON from stdin, and prints what Grafana's own types refuse in it, one line each:
// fields that are unknown, missing or of another type, and values out of bounds. It ends with 1 if there are any.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	// Without them the options of panels and the queries are not looked at.
	plugins.RegisterDefaultPlugins()
	var read dashboard.Dashboard
	refuse(read.UnmarshalJSONStrict(text))
	refuse(read.Validate())
}

func refuse(problems error) {
	// Without problems, both functions return an empty list, which is not nil as an error.
	if problems != nil && problems.Error() != "" {
		fmt.Println(problems)
		os.Exit(1)
	}
}
