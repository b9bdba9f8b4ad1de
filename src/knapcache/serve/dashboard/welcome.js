// First steps: a curl command and client code with this server's address.

import { h } from "./dom.js";
import { copyable } from "./dialogs.js";

/** [[name, code]]. `origin`: the address of the proxy, which also serves this page. */
export function snippets(origin) {
  return [
    ["Shell", `curl ${origin}/v1/chat/completions \\
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

export const connectSnippets = () => snippets(location.origin).map(([name, text]) =>
  h("div", { class: "snippet" }, h("h3", {}, name), copyable(text, name)));

/** Draw the first screen, shown until the first request. */
export function drawWelcome(root) {
  const [shell, openai, anthropic] = connectSnippets();
  root.replaceChildren(
    h("div", { class: "welcome-intro" },
      h("h2", {}, "Waiting for the first request", h("i", { class: "dots", "aria-hidden": "true" })),
      h("p", { class: "sub" }, "Send the same request twice. The second answer comes from the cache, and this page shows how much it saved. The client's API key is passed to the provider.")),
    h("div", { class: "snippets" }, shell, openai, anthropic));
}
