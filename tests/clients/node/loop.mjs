// A loop of the AI SDK, with `openai()` or `anthropic()`; prints its final text, its history and the calls as JSON.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { readFileSync } from "node:fs";
import { z } from "zod";

const asked = JSON.parse(process.argv[2]);
const model =
  asked.provider === "openai"
    ? createOpenAI({ baseURL: asked.base, apiKey: "sk-any" })(asked.model)
    : createAnthropic({ baseURL: asked.base, apiKey: "sk-any" })(asked.model);
const calls = [];
const read = tool({
  description: "Read a file.",
  inputSchema: z.object({ path: z.string() }),
  execute: async ({ path }) => {
    calls.push(path);
    return readFileSync(path, "utf-8");
  },
});
const settings = {
  model, tools: { read }, stopWhen: stepCountIs(100), maxRetries: 0, system: "You are a careful engineer.",
  prompt: asked.prompt, providerOptions: asked.options,
};
let result;
if (asked.stream) {
  const failed = [];
  result = streamText({ ...settings, onError: ({ error }) => failed.push(error) });
  for await (const _ of result.textStream);
  if (failed.length) throw failed[0];
} else {
  result = await generateText(settings);
}
const { messages } = await result.response;
console.log(JSON.stringify({ final: await result.text, messages, calls }));
