// The card and the view of slow requests.

import * as api from "/dashboard/api.js";
import { h, setText } from "/dashboard/dom.js";

export function card(root) {
  const count = h("p", { class: "middle", id: "slow-count" });
  root.append(count);
  return async () => setText(count, `${(await api.get("/slow")).slow} slow requests`);
}

export const view = card;
