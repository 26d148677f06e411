// Computes what each stage did and when. While a request runs, this is an estimate from the arrival times of its events. It
// becomes exact when a stage reports its timings. Pure: callers pass in the time.

/** The phases of a stage's work in order, each with the time at which it ends; as in `omnipipe generate --timeline`. */
const PHASES = [
  ["input", (times) => times.engine_submitted || times.input_complete],
  ["queue", (times) => times.engine_scheduled],
  ["prefill", (times) => (times.first_output === times.last_output ? 0 : times.first_output)],
  ["generate", (times) => times.last_output],
  ["finish", (times) => times.finished],
];

/** Returns the spans {phase, from, to} of a stage. times: in ms since it accepted the request; 0 or absent: did not happen. */
export function spansOf(times) {
  const spans = [];
  let from = 0;
  for (const [phase, end] of PHASES) {
    const to = end(times) || 0;
    if (to <= from) continue;
    spans.push({ phase, from, to });
    from = to;
  }
  return spans;
}

/** One request: a lane per stage, marks for arrived text and audio, and the played audio. Times are in ms since it was sent. */
export class Trace {
  constructor(stages, now) {
    this.zero = now;
    this.lanes = new Map(stages.map((stage) => [stage, { stage, begun: null, spans: [], marks: [], done: false }]));
    this.entryAcceptedUnix = 0;
    this.entryBegun = 0;
    this.firstText = null;
    this.firstAudio = null;
    this.heardFrom = null;
    this.heardMs = 0;
    this.peaks = [];
    this.ended = null;
  }

  at(now) {
    return now - this.zero;
  }

  lane(stage) {
    if (!this.lanes.has(stage)) this.lanes.set(stage, { stage, begun: null, spans: [], marks: [], done: false });
    return this.lanes.get(stage);
  }

  /** Records that a stage accepted the request. unix: the time on the stage's wall clock, in ms. */
  accepted(stage, unix, now) {
    const lane = this.lane(stage);
    if (!this.entryAcceptedUnix && unix) {
      this.entryAcceptedUnix = unix;
      this.entryBegun = this.at(now);
    }
    lane.begun = this.#place(unix, now);
  }

  /** Records the timings that a stage reports at its end: {accepted_unix_ms, ...}, in ms. */
  finished(stage, times, now) {
    const lane = this.lane(stage);
    lane.begun = this.#place(times.accepted_unix_ms, now, lane.begun);
    lane.spans = spansOf(times).map(({ phase, from, to }) => ({ phase, from: lane.begun + from, to: lane.begun + to }));
    if (times.transfer_start && times.transfer_end >= times.transfer_start) {
      lane.transfer = { from: lane.begun + times.transfer_start, to: lane.begun + times.transfer_end };
    }
    lane.firstAudio = times.first_audio ? lane.begun + times.first_audio : null;
    lane.done = true;
  }

  text(now) {
    this.firstText ??= this.at(now);
    [...this.lanes.values()][0]?.marks.push(this.at(now));
  }

  audio(now) {
    this.firstAudio ??= this.at(now);
    [...this.lanes.values()].at(-1)?.marks.push(this.at(now));
  }

  /** Records how much audio has been played, in ms. */
  heard(ms, now) {
    if (this.heardFrom === null && ms > 0) this.heardFrom = Math.max(0, this.at(now) - ms);
    this.heardMs = ms;
  }

  /** Returns the end of the axis, in ms. */
  extent(now) {
    const live = this.ended ?? this.at(now);
    const heard = this.heardFrom === null ? 0 : this.heardFrom + this.heardMs;
    const spans = [...this.lanes.values()].flatMap((lane) => [...lane.spans, ...(lane.transfer ? [lane.transfer] : [])]);
    return Math.max(live, heard, ...spans.map((span) => span.to), 1);
  }

  // Returns when a stage accepted the request, from the difference between its clock and the entry stage's. Clocks of hosts may
  // differ, so the result is limited: not before the request was sent, nor after the stage's message arrived.
  #place(unix, now, known = null) {
    if (!unix || !this.entryAcceptedUnix) return known ?? this.at(now);
    const place = this.entryBegun + unix - this.entryAcceptedUnix;
    return Math.min(Math.max(place, 0), this.at(now));
  }
}

/** Returns at most six round times, beginning with 0, as ticks of an axis that ends at `ms`. */
export function ticksOf(ms) {
  const rough = ms / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  return Array.from({ length: Math.floor(ms / step) + 1 }, (_, index) => index * step);
}
