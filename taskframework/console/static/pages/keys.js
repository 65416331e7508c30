// API keys: who may do what; creating a key, whose text is shown only this once, and revoking a key.
import { adopt, because, get, part, post, session } from "../lib/api.js";
import { html } from "../lib/dom.js";
import { at } from "../lib/format.js";
import { usePages } from "../lib/load.js";
import { say } from "../lib/messages.js";
import { store, useStore } from "../lib/store.js";
import { Action, Ago, Head, Waiting } from "../parts/basics.js";
import { ask } from "../parts/dialog.js";
import { REASON } from "../parts/field.js";
import { Table } from "../parts/table.js";

const LOOK = 5000;
// The key that was created last, until the user confirms that it is saved. It cannot be shown again, so it survives the
// new sign-in of this window that the first key of an installation requires.
const made = store(null);

export function Keys() {
  const list = usePages("admin/keys", {}, { every: LOOK });
  return html`<${Head} title="Keys" actions=${html`<${Action} role="admin" class="main" hotkey="n" onPress=${() => askCreate(list.reload)}>New key<//>`}>
      Who may use this installation, and for what. Of a key only its beginning is known here.
    <//>
    <${Made} />
    <${Waiting} of=${list} what="The list of keys" />
    ${list.items && html`<${Table} label="Keys" rows=${list.items} idOf=${(key) => key.prefix} columns=${columns(list.reload)} more=${list.more}
      isDone=${list.isDone} empty="No keys: everyone who can reach this address can do everything. Create a key to change that." />`}`;
}

function Made() {
  const key = useStore(made);
  if (!key) return null;
  const copy = async () => {
    await navigator.clipboard.writeText(key.key);
    say("Copied.");
  };
  // Browsers let only secure pages copy (over TLS, or on this machine); on others the text is selected, to copy by hand.
  return html`<div class="note good" role="status">
    <b>The key of ${key.principal}. It is shown this once:</b> nobody can read it again, here or elsewhere.
    <label class="field"><span>Key</span><input readonly value=${key.key} onFocus=${(event) => event.target.select()} /></label>
    <div class="actions">
      ${navigator.clipboard && html`<button type="button" onClick=${copy}>Copy</button>`}
      <button type="button" onClick=${() => made.set(null)}>I have saved it</button>
    </div>
  </div>`;
}

const columns = (reload) => [
  { name: "For", cell: (key) => html`<b class="clip">${key.principal}</b><small><code>${key.prefix}</code></small>` },
  { name: "State", size: "m", cell: (key) => html`<span class="status ${stateOf(key).kind}">${stateOf(key).text}</span>` },
  { name: "May", wide: true, cell: (key) => html`<span class="clip">${mayDo(key)}</span>` },
  { name: "Until", wide: true, size: "l", cell: (key) => (key.revoked_at ? `revoked by ${key.revoked_by}` : key.expires_at ? at(key.expires_at) : "no end") },
  { name: "Created", wide: "widest", number: true, size: "m", cell: (key) => html`<${Ago} time=${key.created_at} /><small>by ${key.created_by}</small>` },
  { name: "", number: true, size: "act", cell: (key) => stateOf(key).counts && html`<${Action} role="admin" danger aria-label="Revoke the key ${key.prefix} of ${key.principal}"
    onPress=${async () => (await askRevoke(key)) && reload()}>Revoke<//>` },
];

function stateOf({ revoked_at: revoked, expires_at: until }) {
  if (revoked) return { text: "revoked", kind: "calm" };
  if (until && Date.parse(until) <= Date.now()) return { text: "expired", kind: "warn" };
  return { text: "valid", kind: "good", counts: true };
}

const mayDo = ({ roles, may_act_for_users: forUsers, limit }) => [
  roles.join(", "), forUsers && "acts for users", limit && `${limit.rate} requests a second`,
].filter(Boolean).join(", ");

const ROLES = [
  ["submitter", "submitter: submits, and looks after its own tasks"], ["reader", "reader: looks at its own tasks"],
  ["operator", "operator: looks after the tasks of all"], ["admin", "admin: makes keys, too"],
];

const askCreate = async (reload) => {
  // Whether any key exists, including revoked keys: once the first key exists, every caller needs one.
  const isFirst = (await get("admin/keys", { limit: 1 })).items.length === 0;
  return ask({
    title: "Create a key?",
    text: isFirst
      ? html`<p><b>This is the first key.</b> After that, every caller needs a key. This window signs in with it, so create it for yourself, as admin.</p>`
      : html`<p>It is shown only once, when it is created.</p>`,
    confirm: "Create the key",
    fields: [
      { name: "principal", label: "For", hint: "The user or program that owns the tasks submitted with it", isRequired: true, maxlength: 200 },
      { name: "role", label: "Role", options: ROLES, value: isFirst ? "admin" : "submitter" },
      { name: "expires", label: "Valid for", hint: "Such as 90d or 12h. Empty: until it is revoked" },
      { name: "forUsers", label: "It acts for users: it can submit for any user and see all tasks", type: "checkbox" },
    ],
    run: async ({ principal, role, expires, forUsers }) => {
      const { data } = await post("admin/keys", {
        principal, roles: [role], may_act_for_users: forUsers === "on", expires_after: expires || null,
      });
      made.set(data);
      if (isFirst && !session.get().key) adopt(data.key);
      else reload();
    },
  });
};

const askRevoke = (key) => ask({
  title: "Revoke this key?",
  text: html`<p>The key <code>${key.prefix}</code> of <b>${key.principal}</b> stops working within five seconds, and event streams opened with it end.
    ${key.prefix === session.get().me?.prefix && html` <b>It is yours:</b> this window is signed out.`} This cannot be undone.</p>`,
  confirm: "Revoke the key",
  danger: true,
  fields: [REASON],
  run: async ({ reason }) => {
    await post(`admin/keys/${part(key.prefix)}`, undefined, { method: "DELETE", headers: because(reason) });
    say("Revoked.");
  },
});
