/** Live pages and copy buttons. The server renders everything: on an event the same page is fetched again, and what differs is
 * replaced in place, so that focus, scroll position and opened parts stay. */
const KINDS = ["state", "preparing", "trial", "confirmed", "progress"];
const SHORTEST_MS = 1000; // between two fetches
const POLL_MS = 5000; // if no stream is open, or if it does not carry everything that the page shows

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function replace(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) return void old.replaceWith(fresh);
  if (!(old instanceof Element)) return void (old.data = fresh.data);
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  const present = [...old.childNodes], wanted = [...fresh.childNodes];
  wanted.forEach((child, place) => (place < present.length ? replace(present[place], child) : old.append(child)));
  present.slice(wanted.length).forEach((child) => child.remove());
}

function follow(live, voice, pause) {
  const stream = new EventSource(live.dataset.events);
  let isDue = false, isBusy = false;
  const isPaused = () => pause.getAttribute("aria-pressed") === "true";

  async function refresh() {
    const answer = await fetch(location.href).catch(() => null);
    if (answer?.redirected) return void location.reload(); // the session ended
    if (!answer?.ok) return; // the server is away: the next event or poll tries again
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("live");
    if (!fresh || isPaused()) return;
    const focused = document.activeElement?.id, message = fresh.dataset.say;
    if (message && message !== live.dataset.say) voice.textContent = message;
    const marked = new Set([...live.querySelectorAll(".pick :checked")].map((box) => box.id)); // rows move down
    replace(live, fresh);
    for (const box of live.querySelectorAll(".pick input")) box.checked = marked.has(box.id);
    document.title = page.title;
    marks();
    if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus({ preventScroll: true });
    if (!live.dataset.events) stop();
  }

  async function soon() {
    isDue = true;
    if (isBusy) return;
    isBusy = true;
    for (; isDue && !isPaused(); await sleep(SHORTEST_MS)) {
      isDue = false;
      await refresh();
    }
    isBusy = false;
  }

  function stop() {
    stream.close();
    clearInterval(poll);
    pause.hidden = true;
  }

  pause.hidden = false;
  pause.addEventListener("click", () => {
    pause.setAttribute("aria-pressed", String(!isPaused()));
    soon();
  });
  for (const kind of KINDS) stream.addEventListener(kind, soon);
  const poll = setInterval(() => {
    const isComplete = stream.readyState === EventSource.OPEN && !("poll" in live.dataset);
    if (!isComplete && !document.hidden) soon();
  }, POLL_MS);
}

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-copy]");
  if (!button) return;
  const text = document.getElementById(button.dataset.copy).textContent;
  const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  button.textContent = isCopied ? "Copied" : "Select the text to copy it";
  setTimeout(() => (button.textContent = "Copy"), 2000);
});

// Without a mark there is nothing to compare; without scripts the server says so.
function marks() {
  const button = document.getElementById("compare");
  if (button) button.disabled = !document.querySelector(".pick :checked");
}
document.addEventListener("change", marks);
addEventListener("pageshow", marks);
marks();

const live = document.getElementById("live");
if (live?.dataset.events) follow(live, document.getElementById("voice"), document.getElementById("pause"));
