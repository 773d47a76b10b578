// A chat with the agent of examples/studio. Its thread is in the address, so that a reload goes on with it.
import { useEffect, useRef, useState } from "react";
import { createRoot } from "react-dom/client";
import { useStream } from "@langchain/react";

const address = new URL(window.location.href);
const apiUrl = address.searchParams.get("server") ?? "http://127.0.0.1:2024";
const assistantId = address.searchParams.get("agent") ?? "travel";
const suggestions = ["Which hotels are there in Prague?", "Book the Astoria", "What is there in Oslo?"];

function Chat() {
  const [threadId, setThreadId] = useState(() => address.searchParams.get("thread"));
  const show = (id) => {
    setThreadId(id);
    id ? address.searchParams.set("thread", id) : address.searchParams.delete("thread");
    window.history.replaceState(null, "", address);
  };
  const stream = useStream({ apiUrl, assistantId, threadId, onThreadId: show });
  const say = (content) => stream.submit({ messages: [{ type: "human", content }] });
  const isEmpty = stream.messages.length === 0;
  return (
    <>
      <header>
        <h1>Travel desk</h1>
        <span className={stream.isLoading ? "status busy" : "status"} role="status">
          {stream.isLoading ? "working" : stream.interrupt ? "waiting for you" : "ready"}
        </span>
        <button onClick={() => show(null)} disabled={!threadId}>New trip</button>
      </header>
      <main>
        {isEmpty && !stream.isThreadLoading && <Welcome say={say} />}
        <Messages messages={stream.messages} isLoading={stream.isLoading} />
        {stream.interrupt && <Question interrupt={stream.interrupt} answer={stream.respond} />}
        {stream.error && <p className="error" role="alert">{String(stream.error.message ?? stream.error)}</p>}
        <End watched={stream.messages} />
      </main>
      <Composer say={say} stop={stream.stop} isLoading={stream.isLoading} isWaiting={Boolean(stream.interrupt)} />
    </>
  );
}

function Welcome({ say }) {
  return (
    <section className="welcome">
      <h2>Where to?</h2>
      <p>The desk knows hotels in Prague and in Oslo, and asks you before it books one.</p>
      <ul>
        {suggestions.map((text) => (
          <li key={text}><button onClick={() => say(text)}>{text}</button></li>
        ))}
      </ul>
    </section>
  );
}

function Messages({ messages, isLoading }) {
  const results = new Map(messages.filter((one) => one.type === "tool").map((one) => [one.tool_call_id, one.text]));
  return (
    <ol className="messages" aria-live="polite">
      {messages.filter((one) => one.type !== "tool").map((one, place) => (
        <li key={one.id ?? place} className={one.type}>
          {one.text && <p>{one.text}</p>}
          {(one.tool_calls ?? []).map((call) => (
            <details key={call.id} className="call">
              <summary>{call.name}<small>{results.has(call.id) ? "done" : "…"}</small></summary>
              <pre>{JSON.stringify(call.args, null, 2)}</pre>
              {results.has(call.id) && <p>{results.get(call.id)}</p>}
            </details>
          ))}
        </li>
      ))}
      {isLoading && <li className="dots" aria-label="The agent works"><i /><i /><i /></li>}
    </ol>
  );
}

function Question({ interrupt, answer }) {
  const [isSent, setIsSent] = useState(false);
  const send = (value) => {
    setIsSent(true);
    answer(value, { interruptId: interrupt.id }).catch(() => setIsSent(false));
  };
  return (
    <section className="question">
      <h2>{interrupt.value?.question ?? "Go on?"}</h2>
      <button className="yes" disabled={isSent} onClick={() => send("yes")}>Approve</button>
      <button disabled={isSent} onClick={() => send("no")}>Deny</button>
    </section>
  );
}

function Composer({ say, stop, isLoading, isWaiting }) {
  const [text, setText] = useState("");
  const send = (event) => {
    event.preventDefault();
    if (text.trim()) {
      say(text.trim());
      setText("");
    }
  };
  return (
    <form onSubmit={send}>
      <input
        value={text}
        onChange={(event) => setText(event.target.value)}
        placeholder={isWaiting ? "Approve or deny first" : "Name a city, or a hotel to book"}
        aria-label="Message"
        disabled={isWaiting}
        autoFocus
      />
      {isLoading ? (
        <button type="button" onClick={() => stop()}>Stop</button>
      ) : (
        <button className="yes" disabled={isWaiting || !text.trim()}>Send</button>
      )}
    </form>
  );
}

function End({ watched }) {
  const place = useRef(null);
  useEffect(() => void place.current.scrollIntoView({ block: "end" }), [watched]);
  return <div ref={place} />;
}

const root = document.body.appendChild(document.createElement("div"));
root.id = "root";
createRoot(root).render(<Chat />);
