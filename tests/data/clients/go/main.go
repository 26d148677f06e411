// Sends one prompt and prints the answer's text. The commands of docs/other-languages.md generate the stubs.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	stagev1 "omnipipeline.io/proto/stage/v1"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(target string) error {
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := stagev1.NewStageServiceClient(connection).Generate(ctx)
	if err != nil {
		return err
	}
	start := &stagev1.Start{Input: &stagev1.Start_Text{Text: "Say hello."}}
	if err := stream.Send(&stagev1.GenerateRequest{Message: &stagev1.GenerateRequest_Start{Start: start}}); err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if response.GetAccepted() != nil {
			end := &stagev1.GenerateRequest_End{End: &stagev1.End{}}
			if err := stream.Send(&stagev1.GenerateRequest{Message: end}); err != nil {
				return err
			}
			if err := stream.CloseSend(); err != nil {
				return err
			}
		}
		fmt.Print(response.GetText().GetText())
	}
}
