// First steps: a curl command and client code with this server's address, and with the key and model that it needs.

import { copyable, panel } from "./dialogs.js";
import { h } from "./dom.js";
import { summary } from "./frame.js";

const KEYS = {
  none: "No API key is needed.",
  any: "Any text works as API key.",
  tenant: "Use the API key of a tenant instead of YOUR_TENANT_KEY.",
  provider: "The client's API key is passed to the provider.",
};
const PROVIDER_KEYS = { openai: "$OPENAI_API_KEY", anthropic: "$ANTHROPIC_API_KEY" };
const QUESTION = '[{"role": "user", "content": "What is a knapsack?"}]';

/** The key in a shell command; null if none is needed. */
const shellKey = ({ key, kind }) => ({ none: null, any: "any", tenant: "YOUR_TENANT_KEY", provider: PROVIDER_KEYS[kind] })[key];

/** The argument api_key of an SDK. With a provider's key the SDK reads it from the environment. */
const sdkKey = ({ key }) => ({ none: ', api_key="any"', any: ', api_key="any"', tenant: ', api_key="YOUR_TENANT_KEY"', provider: "" })[key];

function curl(origin, first) {
  const key = shellKey(first), anthropic = first.kind === "anthropic";
  const headers = ["Content-Type: application/json", key && (anthropic ? `x-api-key: ${key}` : `Authorization: Bearer ${key}`), anthropic && "anthropic-version: 2023-06-01"];
  const body = `{"model": "${first.model}", ${anthropic ? '"max_tokens": 100, ' : ""}"messages": ${QUESTION}}`;
  return [`curl ${origin}/v1/${anthropic ? "messages" : "chat/completions"} \\`, ...headers.filter(Boolean).map((line) => `  -H "${line}" \\`), `  -d '${body}'`].join("\n");
}

/** [[name, code]]. origin: the address of the proxy as this browser reaches it, also behind a reverse proxy. */
export function snippets(origin, first) {
  const model = first.kind === "openai" ? first.model : "gpt-4o-mini";
  return [
    ["Shell", curl(origin, first)],
    ["OpenAI SDK", `from openai import OpenAI

client = OpenAI(base_url="${origin}/v1"${sdkKey(first)})
answer = client.chat.completions.create(
    model="${model}",
    messages=${QUESTION},
)
print(answer.choices[0].message.content)`],
    ["Anthropic SDK", `from anthropic import Anthropic

client = Anthropic(base_url="${origin}"${sdkKey(first)})`],
  ];
}

const connectSnippets = (first) => snippets(location.origin, first).map(([name, text]) =>
  h("div", { class: "snippet" }, h("h3", {}, name), copyable(text, name)));

/** Show how to connect. */
export function connect() {
  const first = summary?.first_request;
  if (first) panel("Connect an app", h("p", { class: "sub" }, `Set the base URL of any OpenAI or Anthropic client to this proxy. ${KEYS[first.key]}`), connectSnippets(first));
}

/** A sentence without data, and a button that says how to get some. */
export const noRequests = (...then) => ["No requests yet. ", h("button", { type: "button", class: "link", on: { click: connect } }, "Connect an app"), ...then];

/** Draw the first screen, shown until the first request. first: `first_request` of the summary. */
export function drawWelcome(root, first) {
  const [shell, openai, anthropic] = connectSnippets(first);
  root.replaceChildren(
    h("div", { class: "welcome-intro" },
      h("h2", {}, "Waiting for the first request", h("i", { class: "dots", "aria-hidden": "true" })),
      h("p", { class: "sub" }, `Send the same request twice. The second answer comes from the cache, and this page shows how much it saved. ${KEYS[first.key]}`)),
    h("div", { class: "snippets" }, shell, openai, anthropic));
}
