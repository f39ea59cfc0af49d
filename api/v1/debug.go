package v1

// DebugTableList lists the tables of the pipeline.
type DebugTableList struct {
	Items []DebugTableInfo `json:"items"`
	Next  string           `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
}

// DebugTableInfo describes one table.
type DebugTableInfo struct {
	Name     string `json:"name"`
	Rows     int    `json:"rows"`
	Revision uint64 `json:"revision"`
}

// DebugTable is one table as text.
type DebugTable struct {
	Name     string     `json:"name"`
	Revision uint64     `json:"revision"`
	Columns  []string   `json:"columns"`
	Rows     [][]string `json:"rows"` // sorted; one cell per column
}
