// What to do first: a line to paste, and a program's two lines, with this server's own address in them.

import { h } from "./dom.js";
import { copyable } from "./notes.js";

/** Three ways in. `origin` is where this page came from: the proxy itself. */
export function snippets(origin) {
  return [
    ["From a shell", `curl ${origin}/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -H "Authorization: Bearer $OPENAI_API_KEY" \\
  -d '{"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "What is a knapsack?"}]}'`],
    ["OpenAI SDK", `from openai import OpenAI

client = OpenAI(base_url="${origin}/v1")
answer = client.chat.completions.create(
    model="gpt-4o-mini",
    messages=[{"role": "user", "content": "What is a knapsack?"}],
)
print(answer.choices[0].message.content)`],
    ["Anthropic SDK", `from anthropic import Anthropic

client = Anthropic(base_url="${origin}")`],
  ];
}

/** The list of them. */
export const connecting = () => snippets(location.origin).map(([name, text]) =>
  h("div", { class: "snippet" }, h("h3", {}, name), copyable(text, name)));

/** The first screen of a cache that nobody has asked yet. */
export function welcome(root) {
  const [shell, openai, anthropic] = connecting();
  root.replaceChildren(
    h("div", { class: "hello" },
      h("h2", {}, "Waiting for the first request", h("i", { class: "dots", "aria-hidden": "true" })),
      h("p", { class: "sub" }, "Send the same request twice: the second answer comes from the cache, and this page shows what it saved. Your own key goes through to the provider.")),
    h("div", { class: "snippets" }, shell, openai, anthropic));
}
