"""What one caller may cost a stage server. Each bound, in the order in which a call meets them:

| bound | maximum | where |
|---|---|---|
| connections of a port | 16,384; idle for 60 s, handshake 10 s | `server/ports.py` |
| connections of the metrics port | in all, per address and in time | `omni_proto/runtime/connections.py` |
| size of a message | `limits.maxMessageBytes`; on the health port 64 KiB | `server/ports.py` |
| streams of one connection | more than the bounds below, so that a call is refused with a reason | `server/ports.py` |
| calls other than Generate | 512, per address 64 (health port: 128, 16), each for a bounded time | `side_calls.py` |
| fields of a message | 8,192, counted before protobuf parses it | `field_count.py` |
| calls that have not sent Start | half of the byte budget; then the largest peer loses one | `admission.py` |
| time until Start arrives | 30 s | `request/reading.py` |
| large requests being planned | as many as calls without Start, on two threads | `admission.py` |
| requests, their bytes | `limits.maxConcurrentRequests`, `.maxInflightBytes`; media three quarters | `admission.py` |
| silence of a caller | 30 s; 120 s for a client that sends media or embeddings | `request/reading.py` |
| decoding of media | `media.*`, `timeouts.prepare`; two processes | `media/planning.py`, `media/worker_pool.py` |
| duration of a call | the caller's deadline and `timeouts.request` | `edges/channels.py` |
| messages after the answer | discarded, for a bounded number of calls | `request/interceptor.py` |
| refused calls of one client | 10 a second; further refusals wait up to 1 s | `refusals.py` |

What the engine's side bounds (prompts, forms, payloads, encoders) is in docs/security.md.
"""
