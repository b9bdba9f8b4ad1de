// The history of usage for a selected span of time.

import * as api from "./api.js";
import { toast } from "./dialogs.js";
import { radioGroup } from "./dom.js";
import { summary } from "./frame.js";

const SPANS = [["hour", "Hour"], ["day", "Day"], ["month", "Month"], ["all", "All"]];
const SHORT = 2 * 3600; // seconds; a shorter history is shown by the hour

export class History {
  #draw; #calls = 0;

  /** root: an element for the switch; draw({step, points}): called after each load. */
  constructor(root, draw) {
    this.#draw = draw;
    this.span = summary.now - summary.since < SHORT ? "hour" : "day";
    radioGroup(root, SPANS, this.span, (span) => {
      this.span = span;
      this.load().catch((error) => toast(error.message, "bad"));
    });
  }

  async load() {
    const call = ++this.#calls;
    const found = await api.get("/history", { span: this.span });
    if (call === this.#calls) this.#draw(found); // a later call has not overtaken this one
  }
}
