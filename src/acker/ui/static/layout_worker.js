// Places the components of a topology on a thread of its own.

import { place } from "./layout.js";

onmessage = ({ data }) => postMessage(place(data));
