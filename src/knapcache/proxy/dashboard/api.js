// Client of the admin API. A session cookie that scripts cannot read authenticates the page, together with a CSRF token that
// every request carries. Cookies are shared by all ports of a host name, so other servers on it get the cookie. The CSRF token
// is in the storage of this origin, which they cannot read. The admin token is sent once, at login, and never stored.

const BASE = "/admin/v1";
const TIMEOUT = 10_000; // ms
const STORED = "knapcache-csrf";

let csrf = null;

/** Name and role of the session's token. */
export let session = { name: "", role: "read-only" };

/** No response, or status 5xx or 429: retry later. */
export class Unavailable extends Error {}
/** Status 401: there is no valid session. */
export class Unauthorized extends Error {}
/** Any other 4xx status. */
export class Rejected extends Error {}

async function send(method, path, body) {
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (csrf) headers["x-csrf-token"] = csrf;
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
  if (response.status === 401 || data?.error?.type === "invalid_csrf_token") throw new Unauthorized(message);
  if (response.status >= 500 || response.status === 429) throw new Unavailable(message);
  throw Object.assign(new Rejected(message), { status: response.status });
}

/** Send a request. If the session is refused, and another tab has logged in meanwhile, send it once more. */
async function authenticated(method, path, body) {
  try {
    return await send(method, path, body);
  } catch (error) {
    const found = stored();
    if (!(error instanceof Unauthorized) || !found || found === csrf) throw error;
    csrf = found;
    return send(method, path, body);
  }
}

export const get = (path, query) => authenticated("GET", query ? `${path}?${new URLSearchParams(query)}` : path);

/** Send a request that changes something. */
export const change = authenticated;

/** Continue the session of an earlier visit; false if there is none. */
export async function resume() {
  csrf = stored();
  if (!csrf) return false;
  try {
    begin(await get("/session"));
    return true;
  } catch (error) {
    if (error instanceof Unauthorized) return false;
    throw error;
  }
}

/** Start a session with an admin token. Throws Unauthorized if it is wrong. */
export async function login(token) {
  csrf = null;
  begin(await send("POST", "/login", { token }));
}

export async function logout() {
  await change("POST", "/logout");
  begin({ csrf: null, name: "", role: "read-only" });
}

function begin(found) {
  ({ csrf, ...session } = found);
  try {
    if (csrf) localStorage.setItem(STORED, csrf);
    else localStorage.removeItem(STORED);
  } catch {
    // No storage: the session ends with this page.
  }
}

function stored() {
  try {
    return localStorage.getItem(STORED);
  } catch {
    return csrf;
  }
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
