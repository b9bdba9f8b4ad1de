// Client of the admin API. A session cookie that scripts cannot read authenticates the page. Requests that change something
// also carry a CSRF token that other sites cannot read. The admin token is sent once, at login, and never stored.

const BASE = "/admin/v1";
const TIMEOUT = 10_000; // ms

let csrf = null;

/** No response, or status 5xx or 429: retry later. */
export class Unavailable extends Error {}
/** Status 401: there is no valid session. */
export class Unauthorized extends Error {}
/** Any other 4xx status. */
export class Rejected extends Error {}

async function send(method, path, body) {
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (method !== "GET" && csrf) headers["x-csrf-token"] = csrf;
  let response;
  try {
    response = await fetch(BASE + path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin", cache: "no-store", redirect: "error", signal: AbortSignal.timeout(TIMEOUT),
    });
  } catch (error) {
    throw new Unavailable(error.name === "TimeoutError" ? "the server does not respond" : "the server cannot be reached");
  }
  const text = await response.text().catch(() => "");
  let data = null;
  try {
    data = text ? JSON.parse(text) : null;
  } catch {
    // Not JSON, so not from the admin API; the status is reported instead.
  }
  if (response.ok) return data;
  const message = data?.error?.message?.replace(/\.$/, "") ?? `status ${response.status}`; // without the final period: put in sentences
  if (response.status === 401) throw new Unauthorized(message);
  if (response.status >= 500 || response.status === 429) throw new Unavailable(message);
  throw Object.assign(new Rejected(message), { status: response.status });
}

export const get = (path, query) => send("GET", query ? `${path}?${new URLSearchParams(query)}` : path);

/** Send a request that changes something. After a 403 the CSRF token is fetched again, once: the server may have restarted. */
export async function change(method, path, body) {
  try {
    return await send(method, path, body);
  } catch (error) {
    if (error.status !== 403 || !(await resume())) throw error;
    return send(method, path, body);
  }
}

/** Fetch the CSRF token of the session; false if there is no session. */
export async function resume() {
  try {
    csrf = (await get("/session")).csrf;
    return true;
  } catch (error) {
    if (error instanceof Unauthorized) return false;
    throw error;
  }
}

/** Start a session with the admin token. Throws Unauthorized if it is wrong. */
export async function login(token) {
  csrf = (await send("POST", "/login", { token })).csrf;
}

export async function logout() {
  await change("POST", "/logout");
  csrf = null;
}

/** Return the token in the address (#token=…), or null, and remove it from the address and the history. */
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
