package policyfile

import (
	"encoding/json"
	"strings"
)

// SchemaID is where the schema is published.
const SchemaID = "https://raw.githubusercontent.com/caisson-run/caisson/main/docs/policy.schema.json"

// Schema returns the JSON Schema (2020-12) of the format, for editors. It is made
// of what the decoder checks against. It cannot say what the compiler checks
// beyond: duplicates, contradictions, variables, files.
func Schema() []byte {
	top := fileKeys(nil)
	root := top.schema()
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["$id"] = SchemaID
	root["title"] = "Caisson policy"
	root["description"] = "What a program under Caisson's sandbox may touch. docs/policy.md describes it."
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(err) // strings, numbers and maps of them
	}
	return append(text, '\n')
}

func (k *key) schema() map[string]any {
	s := map[string]any{}
	if k.doc != "" {
		s["description"] = k.doc
	}
	switch k.kind {
	case kindString:
		s["type"] = "string"
		if k.one != nil {
			s["enum"] = k.one
		}
		if k.form != "" {
			s["pattern"] = jsonForm(k.form)
		}
	case kindInteger, kindNumber:
		s["type"] = "number"
		if k.kind == kindInteger {
			s["type"] = "integer"
		}
		if k.above {
			s["exclusiveMinimum"] = k.least
		} else {
			s["minimum"] = k.least
		}
		if k.most > 0 {
			s["maximum"] = k.most
		}
	case kindBool:
		s["type"] = "boolean"
	case kindList:
		s["type"] = "array"
		s["items"] = k.of.schema()
	case kindTable:
		k.tableSchema(s)
	}
	return s
}

func (k *key) tableSchema(s map[string]any) {
	s["type"] = "object"
	if k.of != nil {
		s["additionalProperties"] = k.of.schema()
		if k.form != "" {
			s["propertyNames"] = map[string]any{"pattern": jsonForm(k.form)}
		}
		return
	}
	s["additionalProperties"] = false
	properties, required := map[string]any{}, []string{}
	for _, c := range k.keys {
		properties[c.name] = c.schema()
		if c.required {
			required = append(required, c.name)
		}
	}
	s["properties"] = properties
	if len(required) > 0 {
		s["required"] = required
	}
}

// jsonForm is a form in the dialect of JSON Schema.
func jsonForm(form string) string { return strings.ReplaceAll(form, `\x00`, `\u0000`) }
