// Frames of requests for which a cheaper model is tried: their evidence, what is swapped, and what labels cost.

import * as api from "/dashboard/api.js";
import { dot, figure, h, setText } from "/dashboard/dom.js";
import { count, counted, percent, usd } from "/dashboard/format.js";
import { TableCard } from "/dashboard/table.js";

const HEADINGS = [["Route, models", "model"], ["State", "model"], ["Labels"], ["Mean loss"], ["Swapped"], ["Saved", "hide-small"], ["Paid for labels", "hide-small"]];
const COLORS = { certified: "good", learning: "fair", hopeless: "bad" };

const sum = (frames, name) => frames.reduce((total, frame) => total + frame[name], 0);
const points = (loss) => `${loss < 0 ? "−" : ""}${percent(Math.abs(loss))}`;

/** What the next step of a frame needs, in one sentence. */
function sentence({ state, mode, labels, evidence, needed, loss, bound }) {
  if (state === "hopeless") return "The cheaper model loses too much. No more labels are paid for.";
  if (state === "certified") return mode === "on" ? `It loses at most ${points(loss)}, and answers.` : `It loses at most ${points(loss)}. swap = "on" lets it answer.`;
  if (!labels) return "Waits for its first label.";
  return `Evidence ${evidence.toFixed(1)} of ${needed.toFixed(0)}; the labels so far show a loss of at most ${points(bound)}.`;
}

/** How often the asked model differs from itself. */
const floor = ({ differing, asked_twice, floor }) => (asked_twice ? ` ${percent(differing)} of the labels are no tie; the asked model differs from itself in ${percent(floor)} of ${count(asked_twice)}.` : "");

/** What was saved, and how many frames are certified. */
export function card(root) {
  const show = figure(root);
  return async () => {
    const { frames, problem, all } = await api.get("/swap");
    const certified = frames.filter(({ state }) => state === "certified").length, labels = sum(frames, "labels");
    if (problem) show("Does not work", problem, "bad");
    else if (certified || all.usd_saved) show(usd(all.usd_saved), `saved by cheaper models; ${counted(certified, "frame")} certified now; ${usd(all.usd_labels)} paid for labels`);
    else show("Learning", labels ? `${counted(labels, "label")} in ${counted(frames.length, "frame")}; none is certified yet` : "No labels yet.");
  };
}

export function view(root) {
  const table = new TableCard("swap", "Cheaper models", HEADINGS, { dollars: true, tall: true, empty: "No frames yet. Send a request that a route with swap matches." });
  root.append(table.root);
  return async () => {
    const { frames, more_frames, all, problem } = await api.get("/swap");
    const never = Object.entries(all.excluded).sort((a, b) => b[1] - a[1]).map(([reason, number]) => `${reason} (${count(number)})`);
    const sums = `${usd(all.usd_saved)} saved, ${usd(all.usd_labels)} paid for labels; frames since the start`;
    setText(table.note, problem || [sums, more_frames && `${count(more_frames)} more frames`, never.length && `never swapped: ${never.slice(0, 4).join(", ")}`].filter(Boolean).join(" · "));
    table.draw(frames, (frame) => [
      h("td", { class: "model", title: `frame ${frame.frame}${frame.tenant ? `, tenant ${frame.tenant}` : ""}` }, `${frame.route}: ${frame.model} → ${frame.swap_model}`),
      h("td", { class: "model details", title: sentence(frame) + floor(frame) }, dot(COLORS[frame.state]), `${frame.state}. ${sentence(frame)}`),
      h("td", {}, count(frame.labels)), h("td", {}, frame.labels ? points(frame.mean_loss) : "–"),
      h("td", {}, frame.requests ? `${count(frame.swapped)} (${percent(frame.swapped / frame.requests)})` : "–"),
      h("td", { class: "hide-small" }, usd(frame.usd_saved)), h("td", { class: "hide-small" }, usd(frame.usd_labels))], { key: ({ frame }) => frame });
  };
}
