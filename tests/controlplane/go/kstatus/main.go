// kstatus reads objects as JSON from stdin, one after another, and prints one line for each: the status that Flux, kpt and
// `helm --wait` compute (Current, InProgress, Failed, Terminating or NotFound), a tab, and its message.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	for decoder := json.NewDecoder(os.Stdin); ; {
		var text json.RawMessage
		if err := decoder.Decode(&text); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			fail(err)
		}
		// Not into a map: kstatus reads integers, and encoding/json makes every number a float.
		var object unstructured.Unstructured
		if err := object.UnmarshalJSON(text); err != nil {
			fail(err)
		}
		result, err := status.Compute(&object)
		if err != nil {
			fail(err)
		}
		fmt.Printf("%s\t%s\n", result.Status, result.Message)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
