// Asking again and again, politely.
//
//     every 2 s      while somebody looks
//     every 30 s     while the tab is hidden: enough for the title
//     2, 4, 8 … 30 s after failures, until the server is back; at once when the tab is looked at or the network returns
//
// Invariant: at most one question is on its way, and at most one timer is set.

export const EVERY = 2000;
export const HIDDEN = 30_000;
export const LONGEST = 30_000;

/** ms until the next question. */
export const pause = (failures, hidden) =>
  Math.max(failures ? Math.min(LONGEST, EVERY * 2 ** (failures - 1)) : EVERY, hidden ? HIDDEN : 0);

export class Poll {
  #ask; #tell; #timer = 0; #busy = false; #failures = 0; #on = false;

  /** ask: an async function; tell(error | null, ms until the next try) hears how it went. */
  constructor(ask, tell) {
    this.#ask = ask;
    this.#tell = tell;
    document.addEventListener("visibilitychange", () => document.hidden || this.now());
    window.addEventListener("online", () => this.now());
  }

  start() {
    this.#on = true;
    return this.now();
  }

  stop() {
    this.#on = false;
    clearTimeout(this.#timer);
  }

  async now() {
    if (!this.#on || this.#busy) return;
    clearTimeout(this.#timer);
    this.#busy = true;
    let wrong = null;
    try {
      await this.#ask();
      this.#failures = 0;
    } catch (error) {
      wrong = error;
      this.#failures += 1;
    }
    this.#busy = false;
    const wait = pause(this.#failures, document.hidden);
    this.#tell(wrong, wait);
    if (this.#on) this.#timer = setTimeout(() => this.now(), wait);
  }
}
