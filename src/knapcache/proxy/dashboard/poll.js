// Polling with backoff.
//
//     every 2 s          while the tab is visible
//     every 30 s         while the tab is hidden: enough for the title
//     2, 4, 8 … 30 s     after failures; at once when the tab becomes visible or the network returns
//
// Invariant: at most one call is in flight, and at most one timer is set.

export const INTERVAL = 2000; // ms, as the following
export const HIDDEN_INTERVAL = 30_000;
export const MAX_BACKOFF = 30_000;

/** Milliseconds until the next call. */
export const delay = (failures, hidden) =>
  Math.max(failures ? Math.min(MAX_BACKOFF, INTERVAL * 2 ** (failures - 1)) : INTERVAL, hidden ? HIDDEN_INTERVAL : 0);

export class Poll {
  #call; #report; #timer = 0; #busy = false; #failures = 0; #running = false;

  /** call: an async function; report(error | null, ms until the next call) runs after each call. */
  constructor(call, report) {
    this.#call = call;
    this.#report = report;
    document.addEventListener("visibilitychange", () => document.hidden || this.now());
    window.addEventListener("online", () => this.now());
  }

  start() {
    this.#running = true;
    return this.now();
  }

  stop() {
    this.#running = false;
    clearTimeout(this.#timer);
  }

  async now() {
    if (!this.#running || this.#busy) return;
    clearTimeout(this.#timer);
    this.#busy = true;
    let failure = null;
    try {
      await this.#call();
      this.#failures = 0;
    } catch (error) {
      failure = error;
      this.#failures += 1;
    }
    this.#busy = false;
    const wait = delay(this.#failures, document.hidden);
    this.#report(failure, wait);
    if (this.#running) this.#timer = setTimeout(() => this.now(), wait);
  }
}
