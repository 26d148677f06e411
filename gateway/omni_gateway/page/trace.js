// What each stage did at which time. Live from what arrives here; exact once a stage says its own times. Pure.

/** The phases of a stage's work, in order, each with the time that ends it; as in `omnipipe generate --timeline`. */
const PHASES = [
  ["input", (times) => times.engine_submitted || times.input_complete],
  ["queue", (times) => times.engine_scheduled],
  ["prefill", (times) => (times.first_output === times.last_output ? 0 : times.first_output)],
  ["generate", (times) => times.last_output],
  ["finish", (times) => times.finished],
];

/** Returns the spans {phase, from, to} of a stage's times, in ms since it accepted the request; 0: did not happen. */
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

/** One request: lanes of stages, marks of what arrived, and what was heard. Times are in ms since it was sent. */
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

  /** A stage accepted the request; unix: its wall clock in ms. */
  accepted(stage, unix, now) {
    const lane = this.lane(stage);
    if (!this.entryAcceptedUnix && unix) {
      this.entryAcceptedUnix = unix;
      this.entryBegun = this.at(now);
    }
    lane.begun = this.#place(unix, now);
  }

  /** A stage told its own times, {accepted_unix_ms, ...} in ms. */
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

  /** The loudspeaker has played so many ms. */
  heard(ms, now) {
    if (this.heardFrom === null && ms > 0) this.heardFrom = Math.max(0, this.at(now) - ms);
    this.heardMs = ms;
  }

  /** Where the axis ends, in ms. */
  extent(now) {
    const live = this.ended ?? this.at(now);
    const heard = this.heardFrom === null ? 0 : this.heardFrom + this.heardMs;
    const spans = [...this.lanes.values()].flatMap((lane) => [...lane.spans, ...(lane.transfer ? [lane.transfer] : [])]);
    return Math.max(live, heard, ...spans.map((span) => span.to), 1);
  }

  // Clocks of hosts may differ, so that a stage stands where its own clock puts it beside the entry's, but never before
  // the request was sent or after its message came.
  #place(unix, now, known = null) {
    if (!unix || !this.entryAcceptedUnix) return known ?? this.at(now);
    const place = this.entryBegun + unix - this.entryAcceptedUnix;
    return Math.min(Math.max(place, 0), this.at(now));
  }
}

/** Returns round times for an axis that ends at ms: at most six, 0 among them. */
export function ticksOf(ms) {
  const rough = ms / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  return Array.from({ length: Math.floor(ms / step) + 1 }, (_, index) => index * step);
}
