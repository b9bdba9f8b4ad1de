// The way to the server. A session cookie says who we are, which scripts cannot read; a CSRF token, which only this page can
// read, goes with all that changes something. The admin token is used once, for logging in, and never kept.

const BASE = "/admin/v1";
const PATIENCE = 10_000; // ms: a loopback server that takes longer is away

let csrf = null;

/** The server cannot be reached, or is in trouble: try again later. */
export class NotInMemory extends Error {}
/** Nobody is logged in. */
export class Unknown extends Error {}
/** The server understood, and said no. */
export class Refused extends Error {}

async function send(method, path, body) {
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (method !== "GET" && csrf) headers["x-csrf-token"] = csrf;
  let response;
  try {
    response = await fetch(BASE + path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin", cache: "no-store", redirect: "error", signal: AbortSignal.timeout(PATIENCE),
    });
  } catch (error) {
    throw new NotInMemory(error.name === "TimeoutError" ? "the server does not answer" : "the server cannot be reached");
  }
  const text = await response.text().catch(() => "");
  let said = null;
  try {
    said = text ? JSON.parse(text) : null;
  } catch {
    // Not ours; the status says enough.
  }
  if (response.ok) return said;
  const message = said?.error?.message ?? `status ${response.status}`;
  if (response.status === 401) throw new Unknown(message);
  if (response.status >= 500 || response.status === 429) throw new NotInMemory(message);
  throw Object.assign(new Refused(message), { status: response.status });
}

export const get = (path, query) => send("GET", query ? `${path}?${new URLSearchParams(query)}` : path);

/** Something changes. A CSRF token from before a restart of the server is renewed once. */
export async function change(method, path, body) {
  try {
    return await send(method, path, body);
  } catch (error) {
    if (error.status !== 403 || !(await resume())) throw error;
    return send(method, path, body);
  }
}

/** Is there a session already? */
export async function resume() {
  try {
    csrf = (await get("/session")).csrf;
    return true;
  } catch (error) {
    if (error instanceof Unknown) return false;
    throw error;
  }
}

/** Log in with the admin token; Unknown or Refused where it is wrong. */
export async function login(token) {
  csrf = (await send("POST", "/login", { token })).csrf;
}

/** Log out here. */
export async function logout() {
  await change("POST", "/logout");
  csrf = null;
}

/** The token in the address (#token=…), if there is one; it leaves the address and the history at once. */
export function tokenFromAddress() {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (!found) return null;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return found[1];
  }
}
