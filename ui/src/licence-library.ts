// The list of licences, loaded when somebody asks for it.
import licences from "./licences.json";

export default licences as [string, string, string][];
