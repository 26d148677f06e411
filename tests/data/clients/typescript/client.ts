// Sends one prompt and prints the answer's text. The commands of docs/other-languages.md generate the stubs.
import { credentials } from "@grpc/grpc-js";
import { GenerateRequest, GenerateResponse, StageServiceClient } from "./omni_proto/stage/v1/stage_service";

const client = new StageServiceClient(process.argv[2], credentials.createInsecure());
const call = client.generate();
call.on("data", (response: GenerateResponse) => {
  if (response.accepted) {
    call.write(GenerateRequest.fromPartial({ end: {} }));
    call.end();
  }
  process.stdout.write(response.text?.text ?? "");
});
call.on("error", (error: Error) => {
  console.error(error.message);
  process.exitCode = 1;
});
call.write(GenerateRequest.fromPartial({ start: { text: "Say hello." } }));
