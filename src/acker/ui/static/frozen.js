// A frozen page: the reading and the history that the file itself holds.

import { write } from "./format.js";
import { Graph } from "./graph.js";
import { place } from "./layout.js";
import { $, begin, reset, show } from "./show.js";

const WHEN = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "long", hourCycle: "h23" });

const { view, history } = JSON.parse($("data").textContent);
begin(new Graph($("drawing"), place, $("graph-legend"), $("graph-goes-on")), null);
if (history !== null) reset(history);
show(view);
write($("link"), `Frozen: it shows ${WHEN.format(new Date(view.at_ms))}, and does not change.`);
write($("age"), view.about ?? "");
