// Actions, which need the token that was printed at the start. It comes in the URL's fragment, which no server sees.

import { write } from "./format.js";

const KEY = "acker-token";
const HEADER = "x-acker-token";
// How long it stays on the page what an action did, or why not.
const DONE_MS = 10000;
const BAD_MS = 30000;

export class Actions {
    constructor() {
        this.dialog = document.getElementById("ask");
        this.did = document.getElementById("did");
        const given = new URLSearchParams(location.hash.slice(1)).get("token");
        if (given) {
            sessionStorage.setItem(KEY, given);
            history.replaceState(null, "", location.pathname);
        }
    }

    async run(name, values, question) {
        if (question && !(await this.ask(question))) return;
        if (!sessionStorage.getItem(KEY) && !(await this.askToken())) return;
        try {
            const answer = await fetch(`/api/actions/${name}`, {
                method: "POST",
                headers: { "content-type": "application/json", [HEADER]: sessionStorage.getItem(KEY) ?? "" },
                body: JSON.stringify(values ?? {}),
            });
            const { did, error } = await answer.json();
            if (answer.status === 403) sessionStorage.removeItem(KEY);
            this.tell(answer.ok ? `Done: ${did}.` : `Not done: ${error}.`, !answer.ok);
        } catch {
            this.tell("Not done: the program does not answer.", true);
        }
    }

    tell(text, bad = false) {
        this.did.className = bad ? "did bad" : "did";
        write(this.did, text);
        clearTimeout(this.forget);
        this.forget = setTimeout(() => write(this.did, ""), bad ? BAD_MS : DONE_MS);
    }

    async ask({ title, text, yes }, withToken = false) {
        document.getElementById("ask-h").textContent = title;
        document.getElementById("ask-text").textContent = text;
        document.getElementById("ask-yes").textContent = yes;
        document.getElementById("ask-label").hidden = !withToken;
        this.dialog.returnValue = "no";
        this.dialog.showModal();
        document.getElementById(withToken ? "ask-token" : "ask-no").focus();
        await new Promise((done) => this.dialog.addEventListener("close", done, { once: true }));
        return this.dialog.returnValue === "yes";
    }

    async askToken() {
        const field = document.getElementById("ask-token");
        field.value = "";
        const text = "The program printed it at its start, at the end of the page's URL. It stays in this tab.";
        const said = await this.ask({ title: "Actions need the token", text, yes: "Use it" }, true);
        if (!said || !field.value) return false;
        sessionStorage.setItem(KEY, field.value.trim().replace(/^.*token=/, ""));
        field.value = "";
        return true;
    }
}
