// Search in pages that are opened as files. Browsers start no worker there, so a hidden frame runs the search instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc =
        '<script>postMessage = (message) => parent.postMessage(message, "*");</script>' + `<script src="${url}"></script>`;
      this.frame = new Promise((resolve) => {
        frame.addEventListener("load", () => resolve(frame.contentWindow));
      });
      window.addEventListener("message", (event) => {
        if (event.source === frame.contentWindow) {
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        }
      });
      document.body.append(frame);
    }

    postMessage(message) {
      // The frame's own postMessage is what the search calls to answer.
      this.frame.then((window) => window.dispatchEvent(new MessageEvent("message", { data: message })));
    }
  };
}
