// The global object to which the report's scripts add their functions: token_text.js, tokens_card.js,
// mosaic_drawing.js.
const poise = {
  get tokens() {
    this.tokenView ??= { ...this.text, quantities: new Map() };
    return this.tokenView;
  },
};
