// Numbers, times and elements. Text enters the page by textContent alone.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FINE = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const CLOCK = new Intl.DateTimeFormat("en", {
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hourCycle: "h23",
});

export const NOTHING = "–";

export function count(value) {
    return value === null || value === undefined ? NOTHING : WHOLE.format(value);
}

export function figure(value) {
    if (value === null || value === undefined) return NOTHING;
    return Math.abs(value) < 100 ? FINE.format(value) : WHOLE.format(value);
}

export function rate(value) {
    return value === null || value === undefined ? NOTHING : `${figure(value)}/s`;
}

export function duration(ms) {
    if (ms === null || ms === undefined) return NOTHING;
    if (ms === 0) return "0 ms";
    if (ms < 1) return `${FINE.format(ms * 1000)} µs`;
    if (ms < 1000) return `${FINE.format(ms)} ms`;
    const seconds = Math.floor(ms / 1000);
    if (seconds < 10) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
    if (seconds < 120) return `${seconds} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 120) return `${minutes} min ${seconds % 60} s`;
    const hours = Math.floor(minutes / 60);
    return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function bytes(value) {
    if (value === null || value === undefined) return NOTHING;
    const units = ["B", "kB", "MB", "GB", "TB"];
    const place = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(value) / 3));
    return `${FINE.format(value / 1000 ** place)} ${units[place]}`;
}

export function clock(ms) {
    return CLOCK.format(new Date(ms));
}

export function percent(share) {
    return `${Math.round(100 * share)} %`;
}

export function plural(n, one, many = `${one}s`) {
    return `${count(n)} ${n === 1 ? one : many}`;
}

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) {
        if (typeof value === "function") element.addEventListener(name, value);
        else if (value !== null && value !== undefined && value !== false)
            element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return element;
}

export function el(tag, attributes, ...children) {
    return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Writes only what changed, so that nothing is read aloud or laid out twice.
export function write(element, text) {
    if (element.textContent !== text) element.textContent = text;
}

export function set(element, name, value) {
    if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}
